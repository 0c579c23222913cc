// Which gradients a step's backward makes where some parameters are frozen.
//
// The rule is autograd's: a layer has a backward when its input needs a gradient or a parameter of its own is
// trained, and then what follows it needs one too. What is kept, sent and alive for a moment hangs on it.
#pragma once
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Of one layer's backward.
struct Wanted {
  bool input;   // the gradient of its input
  bool weight;  // of its weight
  bool any;     // either, or that of its bias
  bool operator==(const Wanted&) const = default;
};

/// In forward order. The bias of a GeLU MLP's first product is the activation's, which adds it.
struct WantedByBlock {
  Wanted norm1, qkv, attention, out, norm2, mlp, activation, down;
  /// Each layer's gradient comes through those after it: the last has a backward when any has.
  bool any() const { return down.any; }
  bool operator==(const WantedByBlock&) const = default;
};
WantedByBlock wanted_by_block(const Workload& workload, int64_t layer);

/// A tied head's weight is the embedding's.
struct WantedByHead {
  Wanted norm, head;
};
WantedByHead wanted_by_head(const Workload& workload);

Wanted wanted_by_embedding(const Workload& workload);

}  // namespace shardwise::plan

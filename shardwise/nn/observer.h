// What a forward computes on its way, for those who compare two forwards layer by layer.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace shardwise::nn {

/// A place on the residual stream, behind what it names, or the logits.
struct Stage {
  enum Kind { embedding, attention, mlp, norm, logits } kind;
  int64_t layer = -1;  // of attention and mlp
  bool operator==(const Stage&) const = default;
};

/// Called with every stage's output in the forward's order, as this rank holds it: the stream [s, b, h] or
/// its sequence shard; [s, b, v/t]. Not called again where a forward is recomputed; under full recomputation
/// of a block its attention is not shown, nor are blocks that run on a split batch. On all ranks or on none:
/// reductions are not deferred then. It must not write to the tensor.
using Observer = std::function<void(const Stage& stage, const at::Tensor& local)>;

/// Shows `x` to `observer`, if there is one, and returns it.
template <class PlacedValue>
PlacedValue seen(const Observer* observer, const Stage& stage, PlacedValue x) {
  if (observer && *observer) (*observer)(stage, x.local());
  return x;
}

}  // namespace shardwise::nn

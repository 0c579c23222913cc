// The collectives of a part of a model, as plan/ counts them, without what is computed between them.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/bench/profiled_part.h"

namespace shardwise::bench {

/// Collectives of zeros, shaped as the residual stream.
class CollectivesAlone {
 public:
  /// `collectives`: of one call on `group`.
  CollectivesAlone(const PartShape& shape, const plan::Collectives& collectives, const comm::Group& group);

  /// Calls all of them. An all_gather copies the peers' shards, which layers on shared memory read in place.
  void run();

 private:
  plan::Collectives collectives_;
  comm::Group group_;
  base::Split sequence_;
  at::Tensor full_, shard_;  // [s, b, h] and [s/t, b, h]
};

}  // namespace shardwise::bench

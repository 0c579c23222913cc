// The tensors of a model, and the indices of them that each rank holds.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// A weight or an activation.
struct ShardedTensor {
  std::string name;            // the module of a weight, or what the activation is
  std::vector<int64_t> shape;  // of the unsharded tensor
  bool is_weight = true;       // otherwise an activation [s, b, features]
  int64_t dim = 0;             // that is sharded
  /// For each rank the ranges along `dim`, one for each part of a fused tensor; empty: every rank holds all.
  std::vector<std::vector<base::Range>> ranges;
};

/// Returns the weights outside the blocks and of the first block, in the order of the forward, then the
/// activations between them. Errors: those of Workload::validate.
std::vector<ShardedTensor> sharded_tensors(const Workload& workload);

}  // namespace shardwise::plan

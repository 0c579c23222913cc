// Stages of one block, from which a search adds up the costs of all stages.
#pragma once
#include <map>
#include <tuple>
#include <utility>

#include "shardwise/plan/block_kind.h"
#include "shardwise/plan/parameter_sums.h"

namespace shardwise::plan {

/// Returns the workload with a model of three blocks like a block of the kind of `layer`: the first is on the
/// embedding's stage, the last on the head's, and the one between on neither. `block` selects one: 0, 1 or 2.
/// What is frozen holds for the selected block; those before it are trained if its input has a gradient.
Workload one_of_three_blocks(const Workload& workload, int64_t layer, const BlockKind& kind, int64_t block);

/// The stages of one model. What is frozen and the sums of parameters do not depend on the micro-batch, and
/// are computed once.
class OneBlockStages {
 public:
  /// Returns one_of_three_blocks of a workload of the model.
  Workload workload(const Workload& model, int64_t layer, const BlockKind& kind, int64_t block);
  /// Returns the sums of a stage with one block of this kind.
  const ParameterSums& sums(const Workload& one, const BlockKind& kind);

 private:
  using Key = std::tuple<int, Parallelism, int64_t, int64_t, BlockKind>;  // tp, ..., ep, first block
  std::map<std::pair<BlockKind, int64_t>, FrozenParameters> frozen_;      // by kind and block
  std::map<Key, ParameterSums> sums_;
};

}  // namespace shardwise::plan

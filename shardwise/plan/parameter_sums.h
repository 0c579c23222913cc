// Sums over a rank's parameters, which a search adds up for every plan.
#pragma once
#include <map>
#include <tuple>

#include "shardwise/plan/block_kind.h"

namespace shardwise::plan {

/// Elements of the shards that rank 0, which has the largest ones, holds of a stage.
struct ParameterSums {
  int64_t parameters = 0;    // but for those of experts
  int64_t trained = 0;       // of these, those that are not frozen
  int64_t experts = 0;       // of the rank's experts
  int64_t synchronized = 0;  // whose gradients tensor-parallel ranks sum after the step
  int64_t embedding = 0;     // of the token embedding; 0 if it is not on the stage
  bool is_embedding_trained = false;
};

/// The sums of stages of one block (block_kind.h), each computed once: they do not depend on the micro-batch.
class ParameterSumsOfStages {
 public:
  /// Returns the sums of a stage with one block of this kind.
  const ParameterSums& of(const Workload& one, const BlockKind& kind);

 private:
  using Key = std::tuple<int, Parallelism, int64_t, int64_t, BlockKind>;  // tp, ..., ep, first block
  std::map<Key, ParameterSums> sums_;
};

}  // namespace shardwise::plan

// Sums over a rank's parameters.
#pragma once
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Elements of the shards that rank 0, which has the largest ones, holds of a stage.
struct ParameterSums {
  int64_t parameters = 0;             // but for those of experts
  int64_t trained = 0;                // of these, those that are not frozen
  int64_t experts = 0;                // of the rank's experts
  int64_t synchronized = 0;           // whose gradients tensor-parallel ranks sum after the step
  int64_t embedding = 0;              // of the token embedding; 0 if it is not on the stage
  bool is_embedding_trained = false;  // on the stage and not frozen
};

/// Returns the sums over the workload's stage.
ParameterSums parameter_sums(const Workload& workload);

}  // namespace shardwise::plan

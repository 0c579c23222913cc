// The elements of every parameter on a rank, and which gradients are partial sums that the ranks reduce.
#pragma once
#include <string>
#include <vector>

#include "shardwise/base/row_runs.h"
#include "shardwise/config/parameters.h"
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// One parameter of a rank.
struct LocalParameter {
  std::string name;       // as in checkpoint files
  int64_t part;           // of the model (parallel/parameter_parts.h): 0 before the blocks, then each block's
  base::TensorRows rows;  // of this rank's shard
  int64_t elements;       // in this rank's shard
  int64_t synchronized;   // elements in the optimizer's all_reduce; equal on every rank; 0 if frozen
  bool is_trained;        // false if frozen
  /// A tied embedding on the last of several stages: it has a main gradient there, but the first stage
  /// updates it.
  bool is_copy;
  bool is_expert;  // split over the ranks of expert parallelism
};

/// Returns the part of the model that a parameter is in (LocalParameter::part).
int64_t part_of(const config::ParameterInfo& parameter, const Workload& workload);

/// Returns every parameter of the rank's stage once; a tied head is the embedding. Gradients that are partial
/// sums: under TP+SP those of parameters on the residual stream (norms, row-parallel biases, learned
/// positions); q/k norms; the rows of KV heads that are replicated on several ranks.
std::vector<LocalParameter> local_parameters(const Workload& workload, int rank);

/// Returns which elements of the rank's trained parameters, in their order, each replica owns
/// (parallel/owned_rows.h): of all together, or with sharded gradients of each part of the model.
std::vector<base::Split> owned_by_replicas(const Workload& workload, int rank);
/// Returns the same of the frozen parameters.
std::vector<base::Split> frozen_by_replicas(const Workload& workload, int rank);

}  // namespace shardwise::plan

// Every way to split generation over a cluster, ranked by time, with a reason for each that is refused.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/plan/inference_plan.h"

namespace shardwise::plan {

/// Degrees that the search must keep; nullopt: it tries all.
struct InferencePins {
  std::optional<int64_t> tp = {};  // tensor parallelism
  std::optional<int64_t> pp = {};  // pipeline stages of a replica
  std::optional<int64_t> ep = {};  // ranks that share the experts of a block
};

/// A split that cannot run.
struct RefusedInference {
  InferenceDegrees degrees;  // of the split
  std::string reason;        // one
  int64_t needed_bytes = 0;  // if the reason is memory
};

/// What the search found.
struct InferenceSearchResult {
  std::vector<InferencePlan> plans;       // that fit, in the order of the time that all texts take
  std::vector<RefusedInference> refused;  // by ascending tp, pp and ep
};

/// Tries every tp, pp and number of replicas whose product is the number of ranks; of a mixture of experts
/// with every ep that divides tp, or is tp times a divisor of the replicas. Errors: those of evaluate;
/// c10::ValueError if the pinned tp and pp do not divide the ranks, if a pinned ep is above the experts of a
/// block, if the memory cap is not positive, or if all texts have more than 2³⁴ tokens.
InferenceSearchResult search(const InferenceTask& task, const Machine& machine, const InferencePins& pins,
                             std::optional<int64_t> memory_cap);

}  // namespace shardwise::plan

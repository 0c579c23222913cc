// Every way to split generation over a cluster, ranked by time, with a reason for each that is refused.
#pragma once
#include <optional>

#include "shardwise/plan/inference_plan.h"

namespace shardwise::plan {

/// A split that cannot run.
struct RefusedInference {
  InferenceDegrees degrees;
  std::string reason;        // one
  int64_t needed_bytes = 0;  // if the reason is memory
};

/// What the search found.
struct InferenceSearchResult {
  std::vector<InferencePlan> plans;       // that fit, in the order of the time that all texts take
  std::vector<RefusedInference> refused;  // by ascending tp
};

/// Tries every tp and number of replicas whose product is the number of ranks. `tp`: only this one. Errors:
/// those of evaluate; c10::ValueError if the memory cap is not positive, or if all texts have more than 2³⁴
/// tokens.
InferenceSearchResult search(const InferenceTask& task, const Machine& machine, std::optional<int64_t> tp,
                             std::optional<int64_t> memory_cap);

}  // namespace shardwise::plan

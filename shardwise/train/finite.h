// Stops a run whose loss or gradient is no longer a number, before the weights are touched.
#pragma once
#include "shardwise/parallel/gradient_sync.h"

namespace shardwise::train {

/// What a step is judged by; both are the same on every rank.
struct StepHealth {
  int64_t step;
  double loss;
  double grad_norm;
};

/// Collective only when something is wrong: finds the first rank and parameter that hold no number.
/// Errors: c10::Error, the same on every rank, naming step, rank and place.
void check_finite(const StepHealth& health, const parallel::ParamSpecs& specs, const comm::Group& group);

}  // namespace shardwise::train

// Stops a run whose loss or gradient norm is NaN or Inf, before the optimizer updates the weights.
#pragma once
#include "shardwise/parallel/gradient_sync.h"

namespace shardwise::train {

/// The values of one step that must be finite. Both are equal on every rank.
struct StepHealth {
  int64_t step;
  double loss;
  double grad_norm;
};

/// The error of a step whose loss or gradient norm is NaN or Inf; every rank throws it.
class NotFiniteError : public c10::Error {
 public:
  /// The message is `what`.
  explicit NotFiniteError(const std::string& what);
};

/// Checks that loss and gradient norm are finite. If one is not, a collective finds the first rank and
/// parameter that contain NaN or Inf; `specs`: those of the whole model, equal on all ranks, with values
/// where they are held. Errors: NotFiniteError, equal on every rank, naming step, rank and parameter.
void check_finite(const StepHealth& health, const parallel::ParamSpecs& specs, const comm::Group& group);

}  // namespace shardwise::train

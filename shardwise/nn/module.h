// How layers list their parameters: each layer appends its parameters and their uses, which determine how the
// gradients are synchronized.
#pragma once
#include <type_traits>

#include "shardwise/base/parameter.h"
#include "shardwise/parallel/gradient_sync.h"
#include "shardwise/parallel/placement.h"

namespace shardwise::nn {

using base::ParameterUse;
using parallel::Invariant;
using parallel::kFeature;
using parallel::kSequence;
using parallel::Parameter;
using parallel::ParameterPtr;
using parallel::Partial;
using parallel::Placed;
using parallel::Replicated;
using parallel::ResidualStream;
using parallel::Sharded;

/// A parameter and its use.
struct UsedParameter {
  ParameterPtr parameter;  // never null
  ParameterUse use;        // by its layer
};
/// The parameters of a layer or model, each once.
using UsedParameters = std::vector<UsedParameter>;

/// Returns the gradient's kind for `use`. Parameters on the residual stream have an invariant gradient if it
/// is Invariant, and a partial one if it is sharded, because each rank then processes only its rows.
template <ResidualStream Stream>
parallel::GradientKind gradient_kind(ParameterUse use) {
  if (use == ParameterUse::sharded) return parallel::GradientKind::sharded;
  if (use == ParameterUse::per_head) return parallel::GradientKind::partial;
  return std::is_same_v<Stream, Invariant> ? parallel::GradientKind::invariant
                                           : parallel::GradientKind::partial;
}

/// Returns the parameters with their gradients' kinds, for gradient synchronization and the optimizer.
template <ResidualStream Stream>
parallel::ParamSpecs specs_of(const UsedParameters& parameters) {
  parallel::ParamSpecs specs;
  for (const UsedParameter& used : parameters) {
    specs.push_back(parallel::ParamSpec::over_tp(used.parameter, gradient_kind<Stream>(used.use)));
  }
  return specs;
}

}  // namespace shardwise::nn

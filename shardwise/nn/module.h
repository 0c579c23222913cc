// How a model is walked: every layer names its parameters and what the stream makes of their gradients.
#pragma once
#include <type_traits>

#include "shardwise/parallel/gradient_sync.h"
#include "shardwise/parallel/placement.h"

namespace shardwise::nn {

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

/// What a parameter works on; with the stream it decides what its gradient is.
enum class ParameterUse {
  sharded,    // it is cut itself: column and row weights, column bias, embedding, head
  on_residual,     // whole, on the residual stream: norm weights, row bias, learned positions
  per_head,  // whole, on each rank's own heads: q/k-norm weights
};

struct UsedParameter {
  ParameterPtr parameter;
  ParameterUse use;
};
using UsedParameters = std::vector<UsedParameter>;

/// I on the stream: the same work everywhere. S<seq>: each rank sees its own rows, so a term.
template <ResidualStream Stream>
parallel::GradientKind gradient_kind(ParameterUse use) {
  if (use == ParameterUse::sharded) return parallel::GradientKind::sharded;
  if (use == ParameterUse::per_head) return parallel::GradientKind::partial;
  return std::is_same_v<Stream, Invariant> ? parallel::GradientKind::invariant
                                           : parallel::GradientKind::partial;
}

template <ResidualStream Stream>
parallel::ParamSpecs specs_of(const UsedParameters& roles) {
  parallel::ParamSpecs specs;
  for (const UsedParameter& role : roles) {
    specs.push_back(parallel::ParamSpec::over_tp(role.parameter, gradient_kind<Stream>(role.use)));
  }
  return specs;
}

}  // namespace shardwise::nn

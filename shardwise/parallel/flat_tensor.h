// Tensors of all trained parameters in one, which one collective moves.
#pragma once
#include <optional>

#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// Returns the parameters that are not frozen, in their order.
std::vector<ParameterPtr> trained_parameters(const ParamSpecs& specs);

/// Returns the elements of the parameters' local shards.
int64_t local_elements(const std::vector<ParameterPtr>& parameters);

/// Returns the dtype of the main gradients; nullopt if every parameter is frozen.
/// Errors: c10::ValueError if they have different dtypes.
std::optional<at::ScalarType> gradient_dtype(const std::vector<ParamSpecs>& parts);

/// Returns for each parameter, in their order and without gaps, its part of `flat` in the shape of its shard.
std::vector<at::Tensor> parts_of_flat(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters);

}  // namespace shardwise::parallel

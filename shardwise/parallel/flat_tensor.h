// Tensors of all trained parameters in one, which one collective moves.
#pragma once
#include <optional>

#include "shardwise/parallel/owned_rows.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// Returns the parameters that are not frozen, in their order.
std::vector<ParameterPtr> trained_parameters(const ParamSpecs& specs);

/// Returns those that are, in their order.
std::vector<ParameterPtr> frozen_parameters(const ParamSpecs& specs);

/// Returns the elements of the parameters' local shards.
int64_t local_elements(const std::vector<ParameterPtr>& parameters);

/// Returns the dtype of the main gradients; nullopt if every parameter is frozen.
/// Errors: c10::ValueError if they have different dtypes.
std::optional<at::ScalarType> gradient_dtype(const std::vector<ParamSpecs>& parts);

/// Returns the dtype of the weights, of which there is at least one.
/// Errors: c10::ValueError if they have different dtypes.
at::ScalarType value_dtype(const std::vector<ParamSpecs>& parts);

/// Returns for each parameter, in their order and without gaps, its part of `flat` in the shape of its shard.
std::vector<at::Tensor> parts_of_flat(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters);

/// Returns the first element from `at` on that is at the same place in a cache line as element `like`.
/// Tensors that use a buffer in turn begin where they would if all were one tensor, because sums of BLAS
/// depend on the alignment.
int64_t aligned_like(int64_t like, int64_t at);

/// Makes the value of each parameter its part of `flat`; the values are lost.
void assign_values(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters);

/// Makes owned_value or owned_grad, `which`, of each parameter its part of `flat`, which has the rows that
/// this rank owns, in the order of the parameters and without gaps.
void assign_owned_rows(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters,
                       const OwnedRows& owned, at::Tensor Parameter::*which);

}  // namespace shardwise::parallel

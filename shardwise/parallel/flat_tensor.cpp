#include "shardwise/parallel/flat_tensor.h"

#include <c10/util/Exception.h>

#include "shardwise/kernels/tensors.h"

namespace shardwise::parallel {

std::vector<ParameterPtr> trained_parameters(const ParamSpecs& specs) {
  std::vector<ParameterPtr> parameters;
  for (const ParamSpec& spec : specs)
    if (!spec.parameter->is_frozen()) parameters.push_back(spec.parameter);
  return parameters;
}

std::vector<ParameterPtr> frozen_parameters(const ParamSpecs& specs) {
  std::vector<ParameterPtr> parameters;
  for (const ParamSpec& spec : specs)
    if (spec.parameter->is_frozen()) parameters.push_back(spec.parameter);
  return parameters;
}

int64_t local_elements(const std::vector<ParameterPtr>& parameters) {
  int64_t elements = 0;
  for (const ParameterPtr& parameter : parameters) elements += parameter->value.numel();
  return elements;
}

std::optional<at::ScalarType> gradient_dtype(const std::vector<ParamSpecs>& parts) {
  std::optional<at::ScalarType> first;
  for (const ParamSpecs& specs : parts) {
    for (const ParameterPtr& parameter : trained_parameters(specs)) {
      const at::ScalarType dtype = kernels::accumulator_type(parameter->value.scalar_type());
      if (!first) first = dtype;
      TORCH_CHECK_VALUE(dtype == *first, parameter->name, ": its gradient must have dtype ", *first,
                        " as those of the other parameters; got ", dtype, " [SW0863]");
    }
  }
  return first;
}

at::ScalarType value_dtype(const std::vector<ParamSpecs>& parts) {
  std::optional<at::ScalarType> first;
  for (const ParamSpecs& specs : parts) {
    for (const ParamSpec& spec : specs) {
      const at::ScalarType dtype = spec.parameter->value.scalar_type();
      if (!first) first = dtype;
      TORCH_CHECK_VALUE(dtype == *first, spec.parameter->name, ": must have dtype ", *first,
                        " as the other parameters; got ", dtype, " [SW0867]");
    }
  }
  return first.value();
}

std::vector<at::Tensor> parts_of_flat(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const ParameterPtr& parameter : parameters) {
    const int64_t count = parameter->value.numel();
    parts.push_back(flat.narrow(/*dim=*/0, begin, count).view(parameter->value.sizes()));
    begin += count;
  }
  return parts;
}

int64_t aligned_like(int64_t like, int64_t at) {
  constexpr int64_t kLine = 32;  // elements, of 64 or more bytes
  const int64_t lines = (at - like % kLine + kLine - 1) / kLine;
  return lines * kLine + like % kLine;
}

void assign_values(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters) {
  const std::vector<at::Tensor> values = parts_of_flat(flat, parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->value = values[i].detach().requires_grad_(parameters[i]->value.requires_grad());
}

void assign_owned_rows(const at::Tensor& flat, const std::vector<ParameterPtr>& parameters,
                       const OwnedRows& owned, at::Tensor Parameter::*which) {
  int64_t begin = 0;
  for (const ParameterPtr& parameter : parameters) {
    const base::Range rows = owned.of(*parameter);
    std::vector<int64_t> shape = parameter->value.sizes().vec();
    const int64_t row = shape[0] == 0 ? 0 : parameter->value.numel() / shape[0];
    shape[0] = rows.size();
    (*parameter).*which = flat.narrow(/*dim=*/0, begin, rows.size() * row).view(shape);
    parameter->owned_begin = rows.begin;
    begin += rows.size() * row;
  }
}

}  // namespace shardwise::parallel

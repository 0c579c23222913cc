#include "shardwise/parallel/flat_gradients.h"

#include <c10/util/Exception.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::parallel {
namespace {

at::ScalarType dtype_of_gradient(const Parameter& parameter) {
  return kernels::accumulator_type(parameter.value.scalar_type());
}

std::vector<ParameterPtr> trained(const ParamSpecs& specs) {
  std::vector<ParameterPtr> parameters;
  for (const ParamSpec& spec : specs)
    if (!spec.parameter->is_frozen()) parameters.push_back(spec.parameter);
  return parameters;
}

}  // namespace

FlatGradients::FlatGradients(const ParamSpecs& specs, const comm::Group& group) : group_(group) {
  const std::vector<ParameterPtr> parameters = trained(specs);
  if (parameters.empty()) return;
  const at::ScalarType dtype = dtype_of_gradient(*parameters[0]);
  int64_t elements = 0;
  for (const ParameterPtr& parameter : parameters) {
    TORCH_CHECK_VALUE(dtype_of_gradient(*parameter) == dtype, parameter->name,
                      ": its gradient must have dtype ", dtype, " as those of the other parameters; got ",
                      dtype_of_gradient(*parameter), " [SW0863]");
    elements += parameter->value.numel();
  }
  all_ = group.empty({elements}, dtype);
  all_.zero_();
  int64_t begin = 0;
  for (const ParameterPtr& parameter : parameters) {
    const int64_t count = parameter->value.numel();
    parameter->main_grad = all_.narrow(/*dim=*/0, begin, count).view(parameter->value.sizes());
    begin += count;
  }
}

void FlatGradients::sum_over_ranks_() {
  if (!all_.defined()) return;
  base::enter_part("");
  group_.all_reduce_(all_);
}

}  // namespace shardwise::parallel

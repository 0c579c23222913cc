#include "shardwise/train/finite.h"

#include <algorithm>
#include <cmath>

#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/finite.h"

namespace shardwise::train {
namespace {

/// Returns the index of the first tensor with NaN or Inf: weights first, then gradients, since bad weights
/// cause bad gradients. Returns 2n if all n weights and gradients are finite.
int64_t first_not_finite_index(const parallel::ParamSpecs& specs) {
  const auto n = static_cast<int64_t>(specs.size());
  for (int64_t index = 0; index < 2 * n; ++index) {
    const parallel::Parameter& parameter = *specs[index % n].parameter;
    const at::Tensor& gradient = parameter.owned_grad.defined() ? parameter.owned_grad : parameter.main_grad;
    const at::Tensor tensor = index < n ? parameter.value_rows(parameter.kept_rows()) : gradient;
    if (tensor.defined() && !tensor.is_meta() && kernels::first_nan_or_inf(tensor)) return index;
  }
  return 2 * n;
}

std::string describe_tensor(const parallel::ParamSpecs& specs, int64_t index, int64_t rank) {
  const auto n = static_cast<int64_t>(specs.size());
  if (index == 2 * n) return "in the activations";
  return (index < n ? "in the weights of " : "in the gradient of ") + specs[index % n].parameter->name +
         " on rank " + std::to_string(rank);
}

}  // namespace

NotFiniteError::NotFiniteError(const std::string& what)
    : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what) {}

void check_finite(const StepHealth& health, const parallel::ParamSpecs& specs, const comm::Group& group) {
  if (std::isfinite(health.loss) && std::isfinite(health.grad_norm)) return;
  const std::vector<int64_t> indices = comm::gather_values(first_not_finite_index(specs), group);
  const auto first = std::min_element(indices.begin(), indices.end());
  throw NotFiniteError(
      c10::str("train: loss and gradient must be finite; got loss ", health.loss, " and gradient norm ",
               health.grad_norm, " in step ", health.step, ", first non-finite value ",
               describe_tensor(specs, *first, first - indices.begin()),
               "; resume from the last checkpoint with a lower --lr or a longer --warmup [SW0379]"));
}

}  // namespace shardwise::train

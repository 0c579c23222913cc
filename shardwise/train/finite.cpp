#include "shardwise/train/finite.h"

#include <algorithm>
#include <cmath>

#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/finite.h"

namespace shardwise::train {
namespace {

/// Weights come before gradients: bad ones explain the rest. One past the last place: none here.
int64_t first_bad_place(const parallel::ParamSpecs& specs) {
  const auto n = static_cast<int64_t>(specs.size());
  for (int64_t place = 0; place < 2 * n; ++place) {
    const parallel::Parameter& parameter = *specs[place % n].parameter;
    const at::Tensor& numbers = place < n ? parameter.value : parameter.main_grad;
    if (numbers.defined() && kernels::first_not_finite(numbers)) return place;
  }
  return 2 * n;
}

std::string describe_place(const parallel::ParamSpecs& specs, int64_t place, int64_t rank) {
  const auto n = static_cast<int64_t>(specs.size());
  if (place == 2 * n) return "in the activations";
  return (place < n ? "in the weights of " : "in the gradient of ") + specs[place % n].parameter->name +
         " on rank " + std::to_string(rank);
}

}  // namespace

void check_finite(const StepHealth& health, const parallel::ParamSpecs& specs, const comm::Group& group) {
  if (std::isfinite(health.loss) && std::isfinite(health.grad_norm)) return;
  const std::vector<int64_t> places = comm::gather_values(first_bad_place(specs), group);
  const auto first = std::min_element(places.begin(), places.end());
  TORCH_CHECK(false, "train: loss and gradient must be finite; got loss ", health.loss, " and gradient norm ",
              health.grad_norm, " in step ", health.step, ", first ",
              describe_place(specs, *first, first - places.begin()),
              "; the last checkpoint stands; a lower --lr or a longer --warmup may help");
}

}  // namespace shardwise::train

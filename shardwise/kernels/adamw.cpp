#include "shardwise/kernels/adamw.h"

#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/adamw_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

template <class A>
AdamWFactors<A> factors_of(const AdamWStep& step) {
  const auto number = static_cast<double>(step.number);
  const double correction1 = 1 - std::pow(step.beta1, number), correction2 = 1 - std::pow(step.beta2, number);
  return {.gradient_scale = static_cast<A>(step.gradient_scale),
          .decay = static_cast<A>(1 - step.learning_rate * step.weight_decay),
          .rate1 = static_cast<A>(1 - step.beta1),
          .rate2 = static_cast<A>(1 - step.beta2),
          .beta2 = static_cast<A>(step.beta2),
          .step_size = static_cast<A>(step.learning_rate / correction1),
          .inverse_root = static_cast<A>(1 / std::sqrt(correction2)),
          .eps = static_cast<A>(step.eps)};
}

template <class T>
void update_(const AdamWTensors& x, const AdamWStep& step) {
  using A = Accumulator<T>;
  const AdamWElements<T> all{elements_<A>(x.weights), elements_<A>(x.gradient), elements_<A>(x.exp_avg),
                             elements_<A>(x.exp_avg_sq),
                             x.rounded.defined() ? elements_<T>(x.rounded) : nullptr};
  const auto by = factors_of<A>(step);
  const auto loops = adamw_loops<T>();
  const auto update = step.zeroes_gradient ? loops.update_and_zero : loops.update;
  for_ranges(x.weights.numel(), /*elements_per_unit=*/1,
             [&](int64_t begin, int64_t end) { update(all, begin, end, by); });
}

}  // namespace

void adamw_(const AdamWTensors& x, const AdamWStep& step) {
  const base::ProfiledOp profiled("adamw");
  const at::ScalarType dtype = x.weights.scalar_type();
  check_output("adamw", "weights", x.weights, x.weights.sizes(), accumulator_type(dtype));
  check_output("adamw", "gradient", x.gradient, x.weights.sizes(), dtype);
  check_output("adamw", "exp_avg", x.exp_avg, x.weights.sizes(), dtype);
  check_output("adamw", "exp_avg_sq", x.exp_avg_sq, x.weights.sizes(), dtype);
  const at::Tensor& typed = x.rounded.defined() ? x.rounded : x.weights;
  check_output("adamw", "rounded", typed, x.weights.sizes(), typed.scalar_type());
  with_element_type("adamw", typed, [&]<class T>(T) {
    TORCH_INTERNAL_ASSERT((std::is_same_v<Accumulator<T>, double>) == (dtype == at::kDouble));
    update_<T>(x, step);
  });
}

}  // namespace shardwise::kernels

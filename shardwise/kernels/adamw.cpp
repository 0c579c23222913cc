#include "shardwise/kernels/adamw.h"

#include "shardwise/base/profile.h"
#include "shardwise/kernels/adamw_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

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

namespace {

void check(const AdamWTensors& x) {
  const at::ScalarType dtype = x.weights.scalar_type();
  check_output("adamw", "weights", x.weights, x.weights.sizes(), accumulator_type(dtype));
  check_output("adamw", "gradient", x.gradient, x.weights.sizes(), dtype);
  check_output("adamw", "exp_avg", x.exp_avg, x.weights.sizes(), dtype);
  check_output("adamw", "exp_avg_sq", x.exp_avg_sq, x.weights.sizes(), dtype);
  const at::Tensor& typed = x.rounded.defined() ? x.rounded : x.weights;
  check_output("adamw", "rounded", typed, x.weights.sizes(), typed.scalar_type());
}

}  // namespace

void adamw_(const AdamWTensors& x, const AdamWStep& step) {
  const base::ProfiledOp profiled("adamw");
  check(x);
  for (const at::Tensor* tensor : {&x.weights, &x.gradient, &x.exp_avg, &x.exp_avg_sq, &x.rounded})
    if (tensor->defined()) check_on_cpu("adamw", *tensor);
  const at::ScalarType dtype = x.weights.scalar_type();
  const at::Tensor& typed = x.rounded.defined() ? x.rounded : x.weights;
  with_element_type("adamw", typed, [&]<class T>(T) {
    TORCH_INTERNAL_ASSERT((std::is_same_v<Accumulator<T>, double>) == (dtype == at::kDouble));
    update_<T>(x, step);
  });
}

}  // namespace shardwise::kernels

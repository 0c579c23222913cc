#include "shardwise/kernels/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/block_sums.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/rms_norm_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_weight(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) > 0, op, ": x must be [..., h] with h > 0; got ", x.sizes(),
                    " [SW0416]");
  check_tensor(op, "weight", weight, {x.size(-1)}, x.scalar_type());
}

}  // namespace

void rms_norm_out(at::Tensor& y, at::Tensor& rstd, const at::Tensor& x_any, const at::Tensor& weight_any,
                  double eps) {
  const base::ProfiledOp profiled("rms_norm");
  const at::Tensor x = x_any.contiguous(), weight = weight_any.contiguous();
  check_weight("rms_norm", x, weight);
  check_output("rms_norm", "y", y, x.sizes(), x.scalar_type());
  check_output("rms_norm", "rstd", rstd, row_shape(x), accumulator_type(x.scalar_type()));
  if (const auto* device = device_of("rms_norm", x, weight, y, rstd))
    return device->rms_norm(y, rstd, x, weight, eps);
  const int64_t h = x.size(-1);
  with_element_type("rms_norm", x, [&]<class T>(T) {
    const auto loops = rms_norm_loops<T>();
    for_ranges(rows_of(x), h, [&](int64_t begin, int64_t end) {
      loops.forward(elements_<T>(y) + begin * h, elements_<Accumulator<T>>(rstd) + begin,
                    elements<T>(x) + begin * h, elements<T>(weight), eps, end - begin, h);
    });
  });
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK_VALUE(x.dim() > 0, "rms_norm: x must be [..., h]; got a scalar [SW0422]");
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor rstd = at::empty(row_shape(x), x.options().dtype(accumulator_type(x.scalar_type())));
  rms_norm_out(y, rstd, x, weight, eps);
  return y;
}

at::Tensor rms_norm_backward(const at::Tensor& dy_any, const at::Tensor& x_any, const at::Tensor& weight_any,
                             const at::Tensor& rstd_any, const at::Tensor& weight_grad_) {
  const base::ProfiledOp profiled("rms_norm_backward");
  const at::Tensor dy = dy_any.contiguous(), x = x_any.contiguous();
  const at::Tensor weight = weight_any.contiguous(), rstd = rstd_any.contiguous();
  const at::ScalarType accumulator = accumulator_type(x.scalar_type());
  check_weight("rms_norm_backward", x, weight);
  check_tensor("rms_norm_backward", "dy", dy, x.sizes(), x.scalar_type());
  check_tensor("rms_norm_backward", "rstd", rstd, row_shape(x), accumulator);
  if (weight_grad_.defined())
    check_output("rms_norm_backward", "weight_grad", weight_grad_, weight.sizes(), accumulator);
  const at::Tensor dx = at::empty_like(x);
  if (const auto* device = device_of("rms_norm_backward", dy, x, weight, rstd, weight_grad_)) {
    device->rms_norm_backward(dx, weight_grad_, dy, x, weight, rstd);
    return dx;
  }
  const int64_t h = x.size(-1), rows = rows_of(x);
  const BlockSums weight_sums(weight_grad_, blocks_of(rows));
  with_element_type("rms_norm_backward", x, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = rms_norm_loops<T>();
    for_ranges(blocks_of(rows), kBlockRows * h, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * kBlockRows;
        loops.backward(elements_<T>(dx) + row * h, weight_sums.block<A>(block), elements<T>(dy) + row * h,
                       elements<T>(x) + row * h, elements<T>(weight), elements<A>(rstd) + row,
                       std::min(kBlockRows, rows - row), h);
      }
    });
  });
  weight_sums.accumulate_();
  return dx;
}

}  // namespace shardwise::kernels

#include "shardwise/kernels/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "shardwise/kernels/column_sum_isa.h"
#include "shardwise/kernels/rms_norm_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

// Rows whose weight gradients are summed before being added on. Fixed, so that threads do not change the sum.
constexpr int64_t kRowsPerPartial = 64;

at::IntArrayRef row_shape(const at::Tensor& x) {
  return x.sizes().slice(0, x.dim() - 1);
}

void check_weight(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) > 0, op, ": x must be [..., h] with h > 0; got ", x.sizes());
  check_tensor(op, "weight", weight, {x.size(-1)}, x.scalar_type());
}

template <class T>
void add_partials_(const at::Tensor& weight_grad, const at::Tensor& partials) {
  using A = Accumulator<T>;
  const int64_t h = partials.size(1);
  for_ranges(h, partials.size(0), [&](int64_t begin, int64_t end) {
    column_sum_loops<A>().add_rows(elements_<A>(weight_grad) + begin, elements<A>(partials) + begin,
                                   partials.size(0), end - begin, h);
  });
}

}  // namespace

void rms_norm_out(at::Tensor& y, at::Tensor& rstd, const at::Tensor& x_any, const at::Tensor& weight_any,
                  double eps) {
  const at::Tensor x = x_any.contiguous(), weight = weight_any.contiguous();
  check_weight("rms_norm", x, weight);
  check_output("rms_norm", "y", y, x.sizes(), x.scalar_type());
  check_output("rms_norm", "rstd", rstd, row_shape(x), accumulator_type(x.scalar_type()));
  const int64_t h = x.size(-1);
  with_element_type("rms_norm", x.scalar_type(), [&]<class T>(T) {
    const auto loops = rms_norm_loops<T>();
    for_ranges(rows_of(x), h, [&](int64_t begin, int64_t end) {
      loops.forward(elements_<T>(y) + begin * h, elements_<Accumulator<T>>(rstd) + begin,
                    elements<T>(x) + begin * h, elements<T>(weight), eps, end - begin, h);
    });
  });
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK_VALUE(x.dim() > 0, "rms_norm: x must be [..., h]; got a scalar");
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor rstd = at::empty(row_shape(x), x.options().dtype(accumulator_type(x.scalar_type())));
  rms_norm_out(y, rstd, x, weight, eps);
  return y;
}

at::Tensor rms_norm_backward(const at::Tensor& dy_any, const at::Tensor& x_any, const at::Tensor& weight_any,
                             const at::Tensor& rstd_any, at::Tensor weight_grad_) {
  const at::Tensor dy = dy_any.contiguous(), x = x_any.contiguous();
  const at::Tensor weight = weight_any.contiguous(), rstd = rstd_any.contiguous();
  const at::ScalarType accumulator = accumulator_type(x.scalar_type());
  check_weight("rms_norm_backward", x, weight);
  check_tensor("rms_norm_backward", "dy", dy, x.sizes(), x.scalar_type());
  check_tensor("rms_norm_backward", "rstd", rstd, row_shape(x), accumulator);
  if (weight_grad_.defined())
    check_output("rms_norm_backward", "weight_grad", weight_grad_, weight.sizes(), accumulator);
  const int64_t h = x.size(-1), rows = rows_of(x);
  const int64_t parts = (rows + kRowsPerPartial - 1) / kRowsPerPartial;
  const at::Tensor dx = at::empty_like(x);
  const at::Tensor partials =
      at::zeros({weight_grad_.defined() ? parts : 0, h}, x.options().dtype(accumulator));
  with_element_type("rms_norm_backward", x.scalar_type(), [&]<class T>(T) {
    const auto loops = rms_norm_loops<T>();
    for_ranges(parts, kRowsPerPartial * h, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t row = part * kRowsPerPartial;
        auto* partial = weight_grad_.defined() ? elements_<Accumulator<T>>(partials) + part * h : nullptr;
        loops.backward(elements_<T>(dx) + row * h, partial, elements<T>(dy) + row * h,
                       elements<T>(x) + row * h, elements<T>(weight), elements<Accumulator<T>>(rstd) + row,
                       std::min(kRowsPerPartial, rows - row), h);
      }
    });
    if (weight_grad_.defined()) add_partials_<T>(weight_grad_, partials);
  });
  return dx;
}

}  // namespace shardwise::kernels

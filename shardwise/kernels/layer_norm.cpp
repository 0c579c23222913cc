#include "shardwise/kernels/layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/block_sums.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/layer_norm_isa.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_input(const char* op, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) > 0, op, ": x must be [..., h] with h > 0; got ", x.sizes(),
                    " [SW0416]");
}

void check_gradient(const char* name, const at::Tensor& gradient, const at::Tensor& x) {
  if (!gradient.defined()) return;
  check_output("layer_norm_backward", name, gradient, {x.size(-1)}, accumulator_type(x.scalar_type()));
}

RowMoments empty_moments(const at::Tensor& x) {
  const auto options = x.options().dtype(accumulator_type(x.scalar_type()));
  return {at::empty(row_shape(x), options), at::empty(row_shape(x), options)};
}

}  // namespace

void layer_norm_out(at::Tensor& y, RowMoments& moments, const at::Tensor& x_any, const Affine& affine,
                    double eps) {
  const base::ProfiledOp profiled("layer_norm");
  const at::Tensor x = x_any.contiguous(), weight = affine.weight.contiguous(),
                   bias = affine.bias.contiguous();
  check_input("layer_norm", x);
  const int64_t h = x.size(-1);
  check_tensor("layer_norm", "weight", weight, {h}, x.scalar_type());
  check_tensor("layer_norm", "bias", bias, {h}, x.scalar_type());
  check_output("layer_norm", "y", y, x.sizes(), x.scalar_type());
  check_output("layer_norm", "mean", moments.mean, row_shape(x), accumulator_type(x.scalar_type()));
  check_output("layer_norm", "rstd", moments.rstd, row_shape(x), accumulator_type(x.scalar_type()));
  if (const auto* device = device_of("layer_norm", x, weight, bias, y, moments.mean, moments.rstd))
    return device->layer_norm(y, moments, x, {weight, bias}, eps);
  with_element_type("layer_norm", x, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = layer_norm_loops<T>();
    for_ranges(rows_of(x), h, [&](int64_t begin, int64_t end) {
      loops.forward(elements_<T>(y) + begin * h,
                    {elements_<A>(moments.mean) + begin, elements_<A>(moments.rstd) + begin},
                    elements<T>(x) + begin * h, {elements<T>(weight), elements<T>(bias)}, eps, end - begin,
                    h);
    });
  });
}

at::Tensor layer_norm(const at::Tensor& x, const Affine& affine, double eps) {
  check_input("layer_norm", x);
  at::Tensor y = at::empty(x.sizes(), x.options());
  RowMoments moments = empty_moments(x);
  layer_norm_out(y, moments, x, affine, eps);
  return y;
}

at::Tensor layer_norm_backward(const at::Tensor& dy_any, const at::Tensor& x_any,
                               const at::Tensor& weight_any, const RowMoments& moments,
                               const Affine& gradients_) {
  const base::ProfiledOp profiled("layer_norm_backward");
  const at::Tensor dy = dy_any.contiguous(), x = x_any.contiguous(), weight = weight_any.contiguous();
  const at::Tensor mean = moments.mean.contiguous(), rstd = moments.rstd.contiguous();
  const at::ScalarType accumulator = accumulator_type(x.scalar_type());
  check_input("layer_norm_backward", x);
  const int64_t h = x.size(-1), rows = rows_of(x);
  check_tensor("layer_norm_backward", "weight", weight, {h}, x.scalar_type());
  check_tensor("layer_norm_backward", "dy", dy, x.sizes(), x.scalar_type());
  check_tensor("layer_norm_backward", "mean", mean, row_shape(x), accumulator);
  check_tensor("layer_norm_backward", "rstd", rstd, row_shape(x), accumulator);
  check_gradient("weight gradient", gradients_.weight, x);
  check_gradient("bias gradient", gradients_.bias, x);
  const at::Tensor dx = at::empty_like(x);
  if (const auto* device =
          device_of("layer_norm_backward", dy, x, weight, mean, rstd, gradients_.weight, gradients_.bias)) {
    device->layer_norm_backward(dx, gradients_, dy, x, weight, {mean, rstd});
    return dx;
  }
  const int64_t blocks = blocks_of(rows);
  const BlockSums weight_sums(gradients_.weight, blocks), bias_sums(gradients_.bias, blocks);
  with_element_type("layer_norm_backward", x, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = layer_norm_loops<T>();
    for_ranges(blocks, kBlockRows * h, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * kBlockRows;
        loops.backward(elements_<T>(dx) + row * h, {weight_sums.block<A>(block), bias_sums.block<A>(block)},
                       elements<T>(dy) + row * h, elements<T>(x) + row * h, elements<T>(weight),
                       {elements<A>(mean) + row, elements<A>(rstd) + row}, std::min(kBlockRows, rows - row),
                       h);
      }
    });
  });
  weight_sums.accumulate_();
  bias_sums.accumulate_();
  return dx;
}

}  // namespace shardwise::kernels

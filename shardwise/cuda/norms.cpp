#include <ATen/ops/empty.h>

#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/partial.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/kernels/add_norm_cuda.h"
#include "shardwise/kernels/layer_norm_cuda.h"
#include "shardwise/kernels/rms_norm_cuda.h"

namespace shardwise::cuda {

using at::Tensor;

void Kernels::rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                       double eps) const {
  if (x.numel() == 0) return;
  with_type("rms_norm", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::rms_norm<T>({.y = elements_<T>(y),
                                .rstd = elements_<float>(rstd),
                                .x = elements<T>(x),
                                .weight = elements<T>(weight),
                                .rows = rows_of(x),
                                .h = width_of(x),
                                .eps = static_cast<float>(eps)},
                               current_stream());
  });
}

void Kernels::rms_norm_backward(const Tensor& dx, const Tensor& weight_grad_, const Tensor& dy,
                                const Tensor& x, const Tensor& weight, const Tensor& rstd) const {
  if (x.numel() == 0) return;
  const Partial partial(weight_grad_.defined(), rows_of(x), {width_of(x)}, x);
  with_trained_type("rms_norm_backward", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::rms_norm_backward<T>({.dx = elements_<T>(dx),
                                         .weight_grad = elements_<float>(weight_grad_),
                                         .partial = partial.data(),
                                         .dy = elements<T>(dy),
                                         .x = elements<T>(x),
                                         .weight = elements<T>(weight),
                                         .rstd = elements<float>(rstd),
                                         .rows = rows_of(x),
                                         .h = width_of(x),
                                         .blocks = partial.blocks()},
                                        current_stream());
  });
}

void Kernels::layer_norm(const Tensor& y, const kernels::RowMoments& moments, const Tensor& x,
                         const kernels::Affine& affine, double eps) const {
  if (x.numel() == 0) return;
  with_type("layer_norm", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::layer_norm<T>({.y = elements_<T>(y),
                                  .mean = elements_<float>(moments.mean),
                                  .rstd = elements_<float>(moments.rstd),
                                  .x = elements<T>(x),
                                  .weight = elements<T>(affine.weight),
                                  .bias = elements<T>(affine.bias),
                                  .rows = rows_of(x),
                                  .h = width_of(x),
                                  .eps = static_cast<float>(eps)},
                                 current_stream());
  });
}

void Kernels::layer_norm_backward(const Tensor& dx, const kernels::Affine& gradients_, const Tensor& dy,
                                  const Tensor& x, const Tensor& weight,
                                  const kernels::RowMoments& moments) const {
  if (x.numel() == 0) return;
  const bool has_sums = gradients_.weight.defined() || gradients_.bias.defined();
  const Partial partial(has_sums, rows_of(x), {2, width_of(x)}, x);
  with_trained_type("layer_norm_backward", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::layer_norm_backward<T>({.dx = elements_<T>(dx),
                                           .weight_grad = elements_<float>(gradients_.weight),
                                           .bias_grad = elements_<float>(gradients_.bias),
                                           .partial = partial.data(),
                                           .dy = elements<T>(dy),
                                           .x = elements<T>(x),
                                           .weight = elements<T>(weight),
                                           .mean = elements<float>(moments.mean),
                                           .rstd = elements<float>(moments.rstd),
                                           .rows = rows_of(x),
                                           .h = width_of(x),
                                           .blocks = partial.blocks()},
                                          current_stream());
  });
}

void Kernels::add_rms_norm(const Tensor& residual, const Tensor& norm, const Tensor& x, const void* y,
                           const kernels::AddRmsNorm& add) const {
  if (x.numel() == 0) return;
  const Tensor rstd = at::empty({rows_of(x)}, x.options().dtype(at::kFloat));
  with_type("add_rms_norm", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::add_rms_norm<T>({.residual = elements_<T>(residual),
                                    .norm = elements_<T>(norm),
                                    .mean = nullptr,
                                    .rstd = elements_<float>(rstd),
                                    .x = elements<T>(x),
                                    .y = static_cast<const T*>(y),
                                    .bias = elements<T>(add.bias),
                                    .weight = elements<T>(add.weight),
                                    .norm_bias = nullptr,
                                    .rows = rows_of(x),
                                    .h = width_of(x),
                                    .eps = static_cast<float>(add.eps)},
                                   current_stream());
  });
}

}  // namespace shardwise::cuda

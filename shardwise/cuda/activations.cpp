#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/partial.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/kernels/dropout_cuda.h"
#include "shardwise/kernels/gelu_cuda.h"
#include "shardwise/kernels/swiglu_cuda.h"

namespace shardwise::cuda {

using at::Tensor;

namespace {

kernels::cuda::GeluForm form_of(kernels::Gelu form) {
  return form == kernels::Gelu::erf ? kernels::cuda::GeluForm::erf : kernels::cuda::GeluForm::tanh;
}

}  // namespace

void Kernels::swiglu(const Tensor& y, const Tensor& gate_up) const {
  if (y.numel() == 0) return;
  with_type("swiglu", y.scalar_type(), [&]<class T>(T) {
    kernels::cuda::swiglu<T>({elements_<T>(y), elements<T>(gate_up), rows_of(y), width_of(y)},
                             current_stream());
  });
}

void Kernels::swiglu_backward(const Tensor& d_gate_up, const Tensor& dy, const Tensor& gate_up) const {
  if (dy.numel() == 0) return;
  with_trained_type("swiglu_backward", dy.scalar_type(), [&]<class T>(T) {
    kernels::cuda::swiglu_backward<T>(
        {elements_<T>(d_gate_up), elements<T>(dy), elements<T>(gate_up), rows_of(dy), width_of(dy)},
        current_stream());
  });
}

void Kernels::gelu(const Tensor& y, const Tensor& x, const Tensor& bias, kernels::Gelu form) const {
  if (x.numel() == 0) return;
  with_type("gelu", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::gelu<T>(
        {elements_<T>(y), elements<T>(x), elements<T>(bias), rows_of(x), width_of(x), form_of(form)},
        current_stream());
  });
}

void Kernels::gelu_backward(const Tensor& dx, const Tensor& bias_grad_, const Tensor& dy, const Tensor& x,
                            const Tensor& bias, kernels::Gelu form) const {
  if (x.numel() == 0) return;
  const Partial partial(bias_grad_.defined(), rows_of(x), {width_of(x)}, x);
  with_trained_type("gelu_backward", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::gelu_backward<T>({.dx = elements_<T>(dx),
                                     .bias_grad = elements_<float>(bias_grad_),
                                     .partial = partial.data(),
                                     .dy = elements<T>(dy),
                                     .x = elements<T>(x),
                                     .bias = elements<T>(bias),
                                     .rows = rows_of(x),
                                     .f = width_of(x),
                                     .blocks = partial.blocks(),
                                     .form = form_of(form)},
                                    current_stream());
  });
}

void Kernels::dropout(const Tensor& y, const Tensor& x, double p, kernels::RandomKey key,
                      int64_t first_element) const {
  if (x.numel() == 0) return;
  with_trained_type("dropout", x.scalar_type(), [&]<class T>(T) {
    kernels::cuda::dropout<T>({.y = elements_<T>(y),
                               .x = elements<T>(x),
                               .bias = nullptr,
                               .residual = nullptr,
                               .rows = 1,
                               .h = x.numel(),
                               .p = p,
                               .key = key.value,
                               .first_element = static_cast<uint64_t>(first_element)},
                              current_stream());
  });
}

}  // namespace shardwise::cuda

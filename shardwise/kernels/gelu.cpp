#include "shardwise/kernels/gelu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/gelu_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_bias(const char* op, const at::Tensor& bias, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() > 0, op, ": x must be [..., f]; got a scalar [SW0409]");
  if (bias.defined()) check_tensor(op, "bias", bias, {x.size(-1)}, x.scalar_type());
}

at::Tensor bias_or_zeros(const at::Tensor& bias, const at::Tensor& x) {
  return bias.defined() ? bias.contiguous() : at::zeros({x.size(-1)}, x.options());
}

template <class T>
typename GeluLoops<T>::Form loops_of(Gelu form) {
  const GeluLoops<T> loops = gelu_loops<T>();
  return form == Gelu::erf ? loops.erf : loops.tanh;
}

}  // namespace

at::Tensor gelu(const at::Tensor& x_any, const at::Tensor& bias_any, Gelu form) {
  const base::ProfiledOp profiled("gelu");
  const at::Tensor x = x_any.contiguous(), y = at::empty_like(x);
  check_bias("gelu", bias_any, x);
  if (const auto* device = device_of("gelu", x, bias_any)) {
    device->gelu(y, x, bias_any.defined() ? bias_any.contiguous() : bias_any, form);
    return y;
  }
  const at::Tensor bias = bias_or_zeros(bias_any, x);
  const int64_t f = x.size(-1);
  with_element_type("gelu", x, [&]<class T>(T) {
    const auto loops = loops_of<T>(form);
    for_ranges(rows_of(x), f, [&](int64_t begin, int64_t end) {
      loops.forward(elements_<T>(y) + begin * f, elements<T>(x) + begin * f, elements<T>(bias), end - begin,
                    f,
                    /*stride=*/f);
    });
  });
  return y;
}

// Threads are assigned columns, so that each sums its columns over all rows.
at::Tensor gelu_backward(const at::Tensor& dy_any, const at::Tensor& x_any, const at::Tensor& bias_any,
                         Gelu form, at::Tensor bias_grad_) {
  const base::ProfiledOp profiled("gelu_backward");
  const at::Tensor dy = dy_any.contiguous(), x = x_any.contiguous(), dx = at::empty_like(x);
  check_bias("gelu_backward", bias_any, x);
  const int64_t f = x.size(-1), rows = rows_of(x);
  check_tensor("gelu_backward", "dy", dy, x.sizes(), x.scalar_type());
  if (bias_grad_.defined())
    check_output("gelu_backward", "bias gradient", bias_grad_, {f}, accumulator_type(x.scalar_type()));
  const bool adds_bias = bias_grad_.defined();
  if (const auto* device = device_of("gelu_backward", dy, x, bias_any, bias_grad_)) {
    device->gelu_backward(dx, bias_grad_, dy, x, bias_any.defined() ? bias_any.contiguous() : bias_any, form);
    return dx;
  }
  const at::Tensor bias = bias_or_zeros(bias_any, x);
  with_element_type("gelu_backward", x, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = loops_of<T>(form);
    for_ranges(f, rows, [&](int64_t begin, int64_t end) {
      loops.backward(elements_<T>(dx) + begin, adds_bias ? elements_<A>(bias_grad_) + begin : nullptr,
                     elements<T>(dy) + begin, elements<T>(x) + begin, elements<T>(bias) + begin, rows,
                     end - begin, /*stride=*/f);
    });
  });
  return dx;
}

}  // namespace shardwise::kernels

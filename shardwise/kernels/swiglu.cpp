#include "shardwise/kernels/swiglu.h"

#include <ATen/ops/empty_like.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/swiglu_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

std::vector<int64_t> half_shape(const at::Tensor& gate_up) {
  TORCH_CHECK_VALUE(gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0,
                    "swiglu: gate_up's last dim must be even; got ", gate_up.sizes(), " [SW0426]");
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() /= 2;
  return shape;
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_any) {
  const base::ProfiledOp profiled("swiglu");
  const at::Tensor gate_up = gate_up_any.contiguous();
  const at::Tensor y = empty(half_shape(gate_up), gate_up);
  if (const auto* device = device_of("swiglu", gate_up)) {
    device->swiglu(y, gate_up);
    return y;
  }
  const int64_t f = y.size(-1);
  with_element_type("swiglu", gate_up, [&]<class T>(T) {
    const auto loops = swiglu_loops<T>();
    for_ranges(rows_of(y), f, [&](int64_t begin, int64_t end) {
      loops.forward(elements_<T>(y) + begin * f, elements<T>(gate_up) + begin * 2 * f, end - begin, f);
    });
  });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& dy_any, const at::Tensor& gate_up_any) {
  const base::ProfiledOp profiled("swiglu_backward");
  const at::Tensor dy = dy_any.contiguous();
  const at::Tensor gate_up = gate_up_any.contiguous();
  check_tensor("swiglu_backward", "dy", dy, half_shape(gate_up), gate_up.scalar_type());
  const at::Tensor d_gate_up = at::empty_like(gate_up);
  if (const auto* device = device_of("swiglu_backward", dy, gate_up)) {
    device->swiglu_backward(d_gate_up, dy, gate_up);
    return d_gate_up;
  }
  const int64_t f = dy.size(-1);
  with_element_type("swiglu_backward", gate_up, [&]<class T>(T) {
    const auto loops = swiglu_loops<T>();
    for_ranges(rows_of(dy), 2 * f, [&](int64_t begin, int64_t end) {
      loops.backward(elements_<T>(d_gate_up) + begin * 2 * f, elements<T>(dy) + begin * f,
                     elements<T>(gate_up) + begin * 2 * f, end - begin, f);
    });
  });
  return d_gate_up;
}

}  // namespace shardwise::kernels

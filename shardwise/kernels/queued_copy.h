// Copies from the host to a device that does not make the host wait.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Returns `tensor` on `device`. The copy is queued behind the device's earlier work; a plain Tensor::to
/// would wait for that. `tensor` may be freed at once: CUDA stages memory that is not pinned before it
/// returns.
inline at::Tensor queued_copy(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true);
}

}  // namespace shardwise::kernels

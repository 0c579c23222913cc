// An autograd node made of two linear maps: a forward collective and its conjugate for backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace shardwise::parallel {

using LinearMap = std::function<at::Tensor(const at::Tensor&)>;

/// Returns forward(x); its gradient with respect to `x` is backward(dy). Records no node if `x` needs no
/// gradient. Neither function may modify its argument unless it owns it exclusively.
at::Tensor conjugate(const at::Tensor& x, const LinearMap& forward, LinearMap backward);

inline at::Tensor identity(const at::Tensor& x) {
  return x;
}

}  // namespace shardwise::parallel

// A collective with its conjugate backward, as one autograd node: both are linear maps, so two functions say
// it all.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace shardwise::parallel {

using LinearMap = std::function<at::Tensor(const at::Tensor&)>;

/// forward(x); its backward is backward(dy). No node when no gradient is wanted. Neither may modify its
/// argument, unless it is nobody else's, as what a node has left for this one is.
at::Tensor conjugate(const at::Tensor& x, const LinearMap& forward, LinearMap backward);

inline at::Tensor identity(const at::Tensor& x) {
  return x;
}

}  // namespace shardwise::parallel

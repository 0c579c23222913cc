// Heads of tensors on a device, as kernels take them.
#pragma once
#include <type_traits>

#include "shardwise/cuda/elements.h"
#include "shardwise/kernels/head_split_cuda.h"

namespace shardwise::cuda {

/// Views `heads` [b, heads, s, d], whose last dim is contiguous.
template <class T, class Element = std::remove_const_t<T>>
kernels::cuda::Heads<T> heads_of(const at::Tensor& heads) {
  T* data = nullptr;
  if constexpr (std::is_const_v<T>) {
    data = elements<Element>(heads);
  } else {
    data = elements_<Element>(heads);
  }
  return {data, heads.stride(0), heads.stride(1), heads.stride(2)};
}

}  // namespace shardwise::cuda

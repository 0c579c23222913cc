// Pointers to the elements of a device's tensors, in the types of its kernels.
#pragma once
#include <ATen/core/Tensor.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace shardwise::cuda {

/// Calls f(T{}) for the element type of `dtype`, in kernels that training uses.
/// Errors: c10::ValueError if there is no such kernel.
template <class F>
void with_trained_type(const char* op, at::ScalarType dtype, F f) {
  if (dtype == at::kFloat) return f(float{});
  if (dtype == at::kBFloat16) return f(__nv_bfloat16{});
  TORCH_CHECK_VALUE(false, op, ": a GPU's dtype must be fp32 or bf16; got ", dtype, " [SW0840]");
}

/// As with_trained_type, in kernels that only inference uses.
template <class F>
void with_type(const char* op, at::ScalarType dtype, F f) {
  if (dtype == at::kFloat) return f(float{});
  if (dtype == at::kBFloat16) return f(__nv_bfloat16{});
  if (dtype == at::kHalf) return f(__half{});
  TORCH_CHECK_VALUE(false, op, ": a GPU's dtype must be fp32, bf16 or fp16; got ", dtype, " [SW0841]");
}

/// Returns the elements of `tensor`, which are of type T; null if it is undefined.
template <class T>
const T* elements(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <class T>
T* elements_(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

/// Returns the size of the last dim.
inline int width_of(const at::Tensor& x) {
  return static_cast<int>(x.size(-1));
}
/// Returns the number of rows, the product of all dims except the last, which is not 0.
inline int64_t rows_of(const at::Tensor& x) {
  return x.numel() / x.size(-1);
}

}  // namespace shardwise::cuda

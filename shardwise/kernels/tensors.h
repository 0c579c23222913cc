// Shared by every op's entry point: dispatch by element type, shape checks, element pointers.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/base/element.h"

namespace shardwise::kernels {

/// Returns the dtype in which sums of `dtype` are accumulated: fp64 for fp64, otherwise fp32.
inline at::ScalarType accumulator_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? dtype : at::kFloat;
}

/// Calls f(T{}) for the element type of `dtype`. Errors: c10::ValueError if kernels do not support `dtype`.
template <class F>
void with_element_type(const char* op, at::ScalarType dtype, F f) {
  switch (dtype) {
    case at::kDouble:
      return f(double{});
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(base::Bf16{});
    case at::kHalf:
      return f(base::Fp16{});
    default:
      TORCH_CHECK_VALUE(false, op, ": dtype must be fp64, fp32, bf16 or fp16; got ", dtype, " [SW0421]");
  }
}

/// Checks that `tensor` is on the CPU, for kernels that read and write host memory only. Errors:
/// c10::ValueError.
void check_on_cpu(const char* op, const at::Tensor& tensor);

/// Calls f(T{}) for the element type of `tensor`, which must be on the CPU. Errors: c10::ValueError.
template <class F>
void with_element_type(const char* op, const at::Tensor& tensor, F f) {
  check_on_cpu(op, tensor);
  with_element_type(op, tensor.scalar_type(), f);
}

template <class T>
const T* elements(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* elements_(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

/// Checks the shape and dtype of `tensor`. Errors: c10::ValueError.
void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype);
/// Checks the shape and dtype of an output, and that it is contiguous. Errors: c10::ValueError.
void check_output(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// Allocates a tensor in host memory, like at::empty but without its dispatch, which takes as long as the op
/// itself where a token is decoded.
at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype);
/// Allocates a tensor of the dtype and on the device of `like`.
at::Tensor empty(at::IntArrayRef shape, const at::Tensor& like);

/// Returns all dims except the last.
inline at::IntArrayRef row_shape(const at::Tensor& tensor) {
  return tensor.sizes().slice(0, tensor.dim() - 1);
}
/// Returns the number of rows: the product of all dims except the last.
int64_t rows_of(const at::Tensor& tensor);

}  // namespace shardwise::kernels

// What every op's boundary needs: dispatch by element type, shape checks, and loops over ranges of rows by
// threads.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/kernels/element.h"

namespace shardwise::kernels {

/// What sums over `dtype` are kept in: fp64 for fp64, else fp32.
inline at::ScalarType accumulator_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? dtype : at::kFloat;
}

/// f(T{}) for the element type of `dtype`. Errors: c10::ValueError when there is none.
template <class F>
void with_element_type(const char* op, at::ScalarType dtype, F f) {
  switch (dtype) {
    case at::kDouble:
      return f(double{});
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(Bf16{});
    case at::kHalf:
      return f(Fp16{});
    default:
      TORCH_CHECK_VALUE(false, op, ": dtype must be fp64, fp32, bf16 or fp16; got ", dtype);
  }
}

template <class T>
const T* elements(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* elements_(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

/// Errors: c10::ValueError unless `tensor` has this shape and dtype.
void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype);
/// The same for a tensor that is written: contiguous too.
void check_output(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// Of [..., width]: all dims but the last, and as one, the number of rows.
inline at::IntArrayRef row_shape(const at::Tensor& tensor) {
  return tensor.sizes().slice(0, tensor.dim() - 1);
}
int64_t rows_of(const at::Tensor& tensor);

}  // namespace shardwise::kernels

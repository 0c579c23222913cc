#include "shardwise/kernels/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

namespace shardwise::kernels {

void check_on_cpu(const char* op, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cpu(), op, ": tensors must be on the CPU; got ", tensor.device(),
                    "; copy them there with .cpu() [SW0427]");
}

void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  TORCH_CHECK_VALUE(tensor.sizes() == shape, op, ": ", name, " must be of shape ", shape, "; got ",
                    tensor.sizes(), " [SW0428]");
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, op, ": ", name, " must be of dtype ", dtype, "; got ",
                    tensor.scalar_type(), " [SW0429]");
}

void check_output(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  check_tensor(op, name, tensor, shape, dtype);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), op, ": ", name, " must be contiguous; got strides ",
                    tensor.strides(), " [SW0430]");
}

at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::detail::empty_cpu(shape, dtype);
}

at::Tensor empty(at::IntArrayRef shape, const at::Tensor& like) {
  return like.is_cpu() ? empty(shape, like.scalar_type()) : at::empty(shape, like.options());
}

int64_t rows_of(const at::Tensor& tensor) {
  int64_t rows = 1;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) rows *= tensor.size(dim);
  return rows;
}

}  // namespace shardwise::kernels

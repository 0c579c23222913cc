#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {

void check_on_cpu(const char* op, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cpu(), op, ": tensors must be on the CPU; got ", tensor.device(),
                    "; copy them there with .cpu()");
}

void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  check_on_cpu(op, tensor);
  TORCH_CHECK_VALUE(tensor.sizes() == shape, op, ": ", name, " must be ", shape, "; got ", tensor.sizes());
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, op, ": ", name, " must be ", dtype, "; got ",
                    tensor.scalar_type());
}

void check_output(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  check_tensor(op, name, tensor, shape, dtype);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), op, ": ", name, " must be contiguous; got strides ",
                    tensor.strides());
}

int64_t rows_of(const at::Tensor& tensor) {
  int64_t rows = 1;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) rows *= tensor.size(dim);
  return rows;
}

}  // namespace shardwise::kernels

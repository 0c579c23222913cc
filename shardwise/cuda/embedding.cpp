#include "shardwise/kernels/embedding_cuda.h"

#include <ATen/ops/empty.h>

#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"

namespace shardwise::cuda {

using at::Tensor;

void Kernels::embedding(const Tensor& y, const Tensor& ids, const Tensor& table, int64_t begin) const {
  if (y.numel() == 0) return;
  with_type("embedding", table.scalar_type(), [&]<class T>(T) {
    kernels::cuda::embedding<T>({.y = elements_<T>(y),
                                 .ids = elements<int64_t>(ids),
                                 .table = elements<T>(table),
                                 .count = ids.numel(),
                                 .begin = begin,
                                 .v = static_cast<int>(table.size(0)),
                                 .h = width_of(table)},
                                current_stream());
  });
}

void Kernels::embedding_backward(const Tensor& table_grad_, const Tensor& dy, const Tensor& ids,
                                 int64_t begin) const {
  if (dy.numel() == 0) return;
  const Tensor scratch = at::empty({2, ids.numel()}, ids.options().dtype(at::kInt));
  with_trained_type("embedding_backward", dy.scalar_type(), [&]<class T>(T) {
    kernels::cuda::embedding_backward<T>({.table_grad = elements_<float>(table_grad_),
                                          .order = elements_<int>(scratch),
                                          .ends = elements_<int>(scratch) + ids.numel(),
                                          .dy = elements<T>(dy),
                                          .ids = elements<int64_t>(ids),
                                          .count = static_cast<int>(ids.numel()),
                                          .begin = begin,
                                          .v = static_cast<int>(table_grad_.size(0)),
                                          .h = width_of(table_grad_)},
                                         current_stream());
  });
}

}  // namespace shardwise::cuda

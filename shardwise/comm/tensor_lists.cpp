#include "shardwise/comm/tensor_lists.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace shardwise::comm {

using Tensors = std::vector<at::Tensor>;

Tensors pieces_of(const at::Tensor& x, const base::Split& split, int64_t dim) {
  Tensors pieces;
  for (int rank = 0; rank < split.ranks(); ++rank) {
    pieces.push_back(x.narrow(dim, split.range(rank).begin, split.range(rank).size()));
  }
  return pieces;
}

std::vector<int64_t> numels_of(const Tensors& pieces) {
  std::vector<int64_t> numels;
  for (const at::Tensor& piece : pieces) numels.push_back(piece.numel());
  return numels;
}

Tensors contiguous(const Tensors& inputs) {
  Tensors dense;
  for (const at::Tensor& input : inputs) dense.push_back(input.contiguous());
  return dense;
}

at::Tensor dense_like(const at::Tensor& x) {
  return x.is_contiguous() ? x : at::empty(x.sizes(), x.options().requires_grad(false));
}

Tensors dense_like(const Tensors& outputs) {
  Tensors dense;
  for (const at::Tensor& output : outputs) dense.push_back(dense_like(output));
  return dense;
}

void copy_back(const at::Tensor& x, const at::Tensor& dense) {
  const c10::NoGradGuard no_grad;
  if (!dense.is_same(x)) x.copy_(dense.view(x.sizes()));
}

void copy_back(const Tensors& outputs, const Tensors& dense) {
  for (size_t i = 0; i < outputs.size(); ++i) copy_back(outputs[i], dense[i]);
}

}  // namespace shardwise::comm

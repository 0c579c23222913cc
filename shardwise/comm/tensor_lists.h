// Lists of tensors, one per rank, and contiguous tensors that stand for strided ones.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::comm {

/// Returns the ranks' ranges of `x` along `dim`.
std::vector<at::Tensor> pieces_of(const at::Tensor& x, const base::Split& split, int64_t dim);
/// Returns the number of elements of each piece.
std::vector<int64_t> numels_of(const std::vector<at::Tensor>& pieces);

/// Returns the inputs, with contiguous copies of those that are not.
std::vector<at::Tensor> contiguous(const std::vector<at::Tensor>& inputs);
/// Returns `x` if it is contiguous, else an uninitialized contiguous tensor of its shape.
at::Tensor dense_like(const at::Tensor& x);
std::vector<at::Tensor> dense_like(const std::vector<at::Tensor>& outputs);
/// Copies `dense` into `x` unless they are the same tensor. Not recorded by autograd.
void copy_back(const at::Tensor& x, const at::Tensor& dense);
/// Copies back in order; where outputs overlap, the last one's values remain.
void copy_back(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& dense);

}  // namespace shardwise::comm

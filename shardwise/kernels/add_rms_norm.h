// What stands between two layers of a block: the terms of a sum over the ranks, a bias, the residual stream
// and the norm of all that, in one pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace shardwise::kernels {

/// The terms of a sum, by rank: tensors of the stream's dtype and width, dense, of which the stream has the
/// rows from `first_row` on.
struct TermRows {
  std::span<const void* const> data;
  int64_t first_row = 0;
};

struct AddRmsNorm {
  at::Tensor bias;  // [h], or undefined
  at::Tensor weight;
  double eps;
};

/// stream = x + (Σ terms + bias), norm = RMSNorm(stream): the same bits as those of the ops one by one, the
/// sum of the terms in their order, in fp32 (fp64 for fp64), rounded, then each addition rounded.
/// Shapes: `stream`, `norm`, `x` [..., h], `weight` [h].
/// Errors: c10::ValueError when the shapes or dtypes do not fit, an output is not contiguous, or there is no
/// term.
void add_rms_norm_out(at::Tensor& stream, at::Tensor& norm, const at::Tensor& x, const TermRows& terms,
                      const AddRmsNorm& add);

}  // namespace shardwise::kernels

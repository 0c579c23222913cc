// Fused all_reduce epilogue between two layers of a block: sums the ranks' partial sums, adds the bias and
// the residual, and applies RMSNorm, in one pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace shardwise::kernels {

/// The partial sums of all ranks, in rank order: dense tensors with the dtype and width of the residual
/// stream. The local rows of the residual stream correspond to their rows from `first_row` on.
struct PartialRows {
  std::span<const void* const> data;
  int64_t first_row = 0;
};

/// The parameters of the fused bias and norm.
struct AddRmsNorm {
  at::Tensor bias;  // [h], or undefined
  at::Tensor weight;
  double eps;
};

/// Computes residual = x + (Σ partials + bias) and norm = RMSNorm(residual), bitwise equal to the unfused
/// ops: the partial sums are added in rank order in fp32 (fp64 for fp64) and rounded, then each addition is
/// rounded. Shapes: `residual`, `norm`, `x` [..., h], `weight` [h]. Errors: c10::ValueError if shapes or
/// dtypes do not match, an output is not contiguous, or `partials` is empty.
void add_rms_norm_out(at::Tensor& residual, at::Tensor& norm, const at::Tensor& x,
                      const PartialRows& partials, const AddRmsNorm& add);

}  // namespace shardwise::kernels

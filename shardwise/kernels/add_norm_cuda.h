// The residual stream between two layers of a block on a GPU: adds a layer's output and its bias, and
// normalizes the sum, in one pass. Backward is the norm's, with the residual's gradient (rms_norm_cuda.h,
// layer_norm_cuda.h).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Shapes: `residual`, `norm`, `x`, `y` [rows, h], `bias`, `weight`, `norm_bias` [h], `mean`, `rstd` [rows].
/// `residual` may be `x`.
template <class T>
struct AddNorm {
  T *residual, *norm;
  float *mean, *rstd;  // mean: LayerNorm's
  const T *x, *y;
  const T* bias;                // null: none
  const T *weight, *norm_bias;  // norm_bias: LayerNorm's
  int64_t rows;
  int h;  // at least 1
  float eps;
};

/// Computes residual = x + (y + bias) and norm = RMSNorm(residual), with its rstd; rounds after each addition
/// and normalizes the rounded residual, as the unfused ops do. T: float, __nv_bfloat16 or __half.
template <class T>
void add_rms_norm(const AddNorm<T>& add, cudaStream_t stream);

/// The same with LayerNorm, and its mean.
template <class T>
void add_layer_norm(const AddNorm<T>& add, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

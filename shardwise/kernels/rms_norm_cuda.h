// RMSNorm on a GPU, forward and backward. Launchers queue kernels in a stream: they allocate nothing and wait
// for nothing.
//
// Sums are in fp32, in an order that depends only on shapes. Source: Zhang & Sennrich 2019, eq. 4.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Rows to normalize. Shapes: `y`, `x` [rows, h], `weight` [h], `rstd` [rows].
template <class T>
struct RmsNorm {
  T* y;
  float* rstd;
  const T *x, *weight;
  int64_t rows;
  int h;  // at least 1
  float eps;
};
/// Computes y = x · rstd · weight, with rstd = 1/sqrt(mean(x²) + eps) of each row. T: float, __nv_bfloat16 or
/// __half.
template <class T>
void rms_norm(const RmsNorm<T>& norm, cudaStream_t stream);

/// Shapes: `dx`, `dy`, `x`, `residual_grad` [rows, h], `weight`, `weight_grad` [h], `rstd` [rows], `partial`
/// [blocks, h].
template <class T>
struct RmsNormBackward {
  T* dx;
  float* weight_grad;  // is added to; null: not wanted
  float* partial;      // scratch; unused without weight_grad
  const T *dy, *x, *weight;
  const float* rstd;
  int64_t rows;
  int h;
  int blocks;                        // one or two for each multiprocessor; at least 1
  const T* residual_grad = nullptr;  // is added to dx before it is rounded; null: 0
};
/// Computes dx, and adds Σ_rows dy · x · rstd to weight_grad. T: float or __nv_bfloat16.
template <class T>
void rms_norm_backward(const RmsNormBackward<T>& norm, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

// LayerNorm on a GPU, forward and backward. Launchers queue kernels in a stream: they allocate nothing and
// wait for nothing.
//
// Sums are in fp32, in an order that depends only on shapes. Source: Ba, Kiros & Hinton 2016, eq. 4.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Rows to normalize. Shapes: `y`, `x` [rows, h], `weight`, `bias` [h], `mean`, `rstd` [rows].
template <class T>
struct LayerNorm {
  T* y;
  float *mean, *rstd;
  const T *x, *weight, *bias;
  int64_t rows;
  int h;  // at least 1
  float eps;
};
/// Computes y = (x − mean) · rstd · weight + bias, with rstd = 1/sqrt(mean((x − mean)²) + eps) of each row.
/// T: float, __nv_bfloat16 or __half.
template <class T>
void layer_norm(const LayerNorm<T>& norm, cudaStream_t stream);

/// Shapes: `dx`, `dy`, `x`, `residual_grad` [rows, h], `weight`, `weight_grad`, `bias_grad` [h], `mean`,
/// `rstd` [rows], `partial` [2, blocks, h].
template <class T>
struct LayerNormBackward {
  T* dx;
  float *weight_grad, *bias_grad;  // are added to; null: not wanted
  float* partial;                  // scratch; unused without gradients
  const T *dy, *x, *weight;
  const float *mean, *rstd;
  int64_t rows;
  int h;
  int blocks;                        // one or two for each multiprocessor; at least 1
  const T* residual_grad = nullptr;  // is added to dx before it is rounded; null: 0
};
/// Computes dx, and adds Σ_rows dy · (x − mean) · rstd to weight_grad and Σ_rows dy to bias_grad. T: float or
/// __nv_bfloat16.
template <class T>
void layer_norm_backward(const LayerNormBackward<T>& norm, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

// GeLU with the bias addition of the preceding product, on a GPU, forward and backward. Launchers queue
// kernels in a stream: they allocate nothing and wait for nothing.
//
// Computes in fp32, with the GPU's approximate exp and reciprocal, which take fewer instructions. Source:
// Hendrycks & Gimpel 2016.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// The form of Φ in x · Φ(x): the normal distribution's, or (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2.
enum class GeluForm { erf, tanh };

/// Shapes: `y`, `x` [rows, f], `bias` [f].
template <class T>
struct Gelu {
  T* y;
  const T *x, *bias;  // null bias: none
  int64_t rows;
  int f;  // at least 1
  GeluForm form;
};
/// Computes y = gelu(x + bias), without rounding the sum to T. T: float, __nv_bfloat16 or __half.
template <class T>
void gelu(const Gelu<T>& g, cudaStream_t stream);

/// Shapes: `dx`, `dy`, `x` [rows, f], `bias`, `bias_grad` [f], `partial` [blocks, f].
template <class T>
struct GeluBackward {
  T* dx;
  float* bias_grad;        // is added to; null: not wanted
  float* partial;          // scratch; unused without bias_grad
  const T *dy, *x, *bias;  // null bias: none
  int64_t rows;
  int f;       // at least 1
  int blocks;  // that share the rows of some columns, 256 packs of 16 bytes; at least 1
  GeluForm form;
};
/// Computes dx, and adds its sum over the rows, before it is rounded to T, to bias_grad. The order of the sum
/// depends only on shapes and blocks. T: float or __nv_bfloat16.
template <class T>
void gelu_backward(const GeluBackward<T>& g, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

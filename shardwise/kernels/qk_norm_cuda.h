// RMSNorm over each query and key head (QK norm) on a GPU, fused with the split into heads and the rotary
// embedding. Launchers queue kernels in a stream: they allocate nothing and wait for nothing.
//
// Sums are in fp32, in an order that depends only on shapes. Source: Dehghani et al. 2023 §2 (q/k norm);
// Zhang & Sennrich 2019, eq. 4; Su et al. 2021, eq. 34.
#pragma once
#include <cuda_runtime_api.h>

#include "shardwise/kernels/head_split_cuda.h"

namespace shardwise::kernels::cuda {

/// Shapes: `q` [b, a, s, d], `k` and `v` [b, k, s, d], `qkv` [s, b, (a + 2k)·d], weights [d].
template <class T>
struct QkNorm {
  HeadSplit split;
  Heads<T> q, k, v;  // v.data null: v stays in qkv
  const T *qkv, *q_weight, *k_weight;
  float eps;
  int blocks;  // of q's heads: some for each multiprocessor; at least 1
};
/// Splits `qkv` into heads, and normalizes and rotates those of q and k; rounds once. T: float, __nv_bfloat16
/// or __half.
template <class T>
void qk_norm(const QkNorm<T>& norm, cudaStream_t stream);

/// Shapes as above; the gradients of weights [d]; `partial` [2, blocks, d].
template <class T>
struct QkNormBackward {
  HeadSplit split;
  T* d_qkv;
  float *q_weight_grad, *k_weight_grad;  // are added to; null: not wanted
  float* partial;                        // scratch; unused without gradients of weights
  Heads<const T> dq, dk, dv;
  const T *qkv, *q_weight, *k_weight;
  float eps;
  int blocks;
};
/// Computes all of d_qkv from the gradients of q, k and v, and adds the weights' gradients. T: float or
/// __nv_bfloat16.
template <class T>
void qk_norm_backward(const QkNormBackward<T>& norm, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

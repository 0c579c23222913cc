// Rotary position embedding, fused with the split of a q|k|v product into heads, on a GPU. Launchers queue
// kernels in a stream: they allocate nothing and wait for nothing. Semantics are those of kernels/rotary.h;
// rotates in fp32 and rounds once. Source: Su et al. 2021, eq. 34.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "shardwise/kernels/head_split_cuda.h"

namespace shardwise::kernels::cuda {

/// Shapes: `qkv` [s, b, (a + 2k)·d], `q` [b, a, s, d], `k`, `v` [b, k, s, d]. The s · b · (a + 2k) of qkv are
/// fewer than 2³¹.
template <class T>
struct SplitRotary {
  Heads<T> q, k, v;
  const T* qkv;
  HeadSplit split;
};
/// Splits qkv, and rotates q and k by their positions. T: float, __nv_bfloat16 or __half.
template <class T>
void split_rotary(const SplitRotary<T>& r, cudaStream_t stream);

/// Shapes as above.
template <class T>
struct SplitRotaryBackward {
  T* d_qkv;
  Heads<const T> dq, dk, dv;
  HeadSplit split;
};
/// Computes d qkv: rotates dq and dk back. T: float or __nv_bfloat16.
template <class T>
void split_rotary_backward(const SplitRotaryBackward<T>& r, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

// Products of a few rows with a weight on a GPU, as in decoding: the time is that of reading the weight once.
// Launchers queue kernels in a stream: they allocate nothing and wait for nothing.
//
// Sums are in fp32, in an order that only k sets: a row has the same bits alone and in a batch, and an output
// has them in every shard of W's rows, aligned or not.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Shapes: `y` [m, n], `x` [m, k], `w` [n, k], contiguous.
template <class T>
struct RowProduct {
  T* y;
  const T *x, *w;
  int64_t m;  // at most 8 · 65,535
  int n;      // at most 2³⁰
  int k;      // at most 2³⁰; 0: y = 0
};
/// Computes y = x Wᵀ. T: float, __nv_bfloat16 or __half.
///
/// An output has the error of rounding it to T and (r + 9) · 2⁻²⁴ · Σ|x·w|, r = k/32 rounded up to whole
/// packs of 16 bytes, or k/128 where a thread then has at least 4 packs.
/// Cost: reads W once for each 8 rows, 16 bytes at a time if x and w are aligned to 16 bytes and rows are
/// whole packs; otherwise one element at a time.
template <class T>
void row_product(const RowProduct<T>& product, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

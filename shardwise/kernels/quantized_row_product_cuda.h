// Products of a few rows with an int8 or int4 weight on a GPU, as in decoding: values are dequantized in
// registers. Launchers queue kernels in a stream: they allocate nothing and wait for nothing.
//
// Sums are in fp32, in an order that only k and the groups set: a row has the same bits alone and in a batch,
// and an output has them in every shard of W's rows, aligned or not.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "shardwise/kernels/quantized_weight_cuda.h"

namespace shardwise::kernels::cuda {

/// Shapes: `y` [m, n], `x` [m, k], contiguous.
template <class T>
struct QuantizedRowProduct {
  T* y;
  const T* x;
  QuantizedWeight w;
  int64_t m;  // at most 8 · 65,535
};
/// Computes y = x Wᵀ. T: float or __nv_bfloat16. A thread multiplies 128/bits columns at a time: it sums
/// x · (quantized − zero point) over those of one group, and adds that sum times the scale.
///
/// An output has the error of rounding it to T and (128/bits + r + 9) · 2⁻²⁴ · Σ|x·w|; r is how often a
/// thread adds a sum: once for each 128/bits columns and change of groups within them.
/// Cost: reads W once for each 8 rows, 16 bytes at a time if x and qweight are aligned to 16 bytes, rows and
/// groups begin and end at 16 bytes of values, and there is no group_index; otherwise one value at a time.
/// Weights with a group_index are faster with their columns sorted by group, and x with them.
template <class T>
void quantized_row_product(const QuantizedRowProduct<T>& product, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

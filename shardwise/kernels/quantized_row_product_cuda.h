// Products of a few rows with an int8 or int4 weight on a GPU, as in decoding: values are dequantized in
// registers. Launchers queue kernels in a stream: they allocate nothing and wait for nothing.
//
// Sums are in fp32, in an order that only k and the groups set: a row has the same bits alone and in a batch,
// and an output has them in every shard of W's rows, aligned or not.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// A shard of a quantized weight as a quant::Matrix has it, on the device: w = (quantized − zero point) ·
/// scale. Shapes: `qweight` [n, words], `scales`, `zero_points` [n, groups], `group_index` [k].
struct QuantizedWeight {
  const uint32_t* qweight;     // values packed from the lowest bits up
  const float* scales;         // products are exact where these are fp16 numbers
  const uint8_t* zero_points;  // null: all are 2^(bits − 1)
  const int32_t* group_index;  // the group of each column; null: groups are in order
  int n, k;                    // outputs, and columns of the shard; at most 2³⁰
  int bits;                    // 4 or 8
  int words, groups;           // of a row
  int first_value;             // the first column's, in the first word: columns.begin modulo 32/bits
  int first_in_group;          // and in the first group: columns.begin modulo group_size
  int group_size;              // columns; with a group_index unused
};

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

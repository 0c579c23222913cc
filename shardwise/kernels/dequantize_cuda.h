// Rows of an int8 or int4 weight on a GPU, dequantized: for products with many rows, and for embeddings.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "shardwise/kernels/quantized_weight_cuda.h"

namespace shardwise::kernels::cuda {

/// Shapes: `out` [rows, w.k], contiguous.
template <class T>
struct Dequantize {
  T* out;
  const int64_t* ids;  // [rows]; null: 0, 1, 2, …
  int64_t rows;
  int64_t begin;  // the id of the first row of w
  QuantizedWeight w;
};
/// Writes the values of row ids[i] − begin of w to out[i], computed in fp32 and rounded once; zeros if w does
/// not have that row. T: float, __nv_bfloat16 or __half.
template <class T>
void dequantize(const Dequantize<T>& dequantize, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

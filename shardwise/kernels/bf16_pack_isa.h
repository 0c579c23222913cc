// Packs bf16 matrices into the VNNI layout of the processor's bf16 products, which multiply pairs.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// A pair consists of rows 2i and 2i + 1 of one column, the first in the lower half. An odd number of rows is
/// padded with zero.
template <class T>
struct PackLoops {
  /// to[i · to_stride + j] = pair i of column j, for j < columns.
  void (*pairs)(uint32_t* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
                int64_t columns);
  /// to[j · to_stride + i] = pair i of column j: each column's pairs are contiguous.
  void (*transposed_pairs)(uint32_t* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
                           int64_t columns);
};
SHARDWISE_PER_ISA(PackLoops, pack_loops)

}  // namespace shardwise::kernels

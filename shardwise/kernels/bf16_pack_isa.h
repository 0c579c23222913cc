// Lays bf16 matrices out for the processor's bf16 products, which take terms in pairs.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

/// A pair is rows 2i and 2i + 1 of one column, the first in the lower half; an odd number of rows ends with
/// zero.
template <class T>
struct PackLoops {
  /// to[i · to_stride + j] = pair i of column j, for j < columns.
  void (*pairs)(uint32_t* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
                int64_t columns);
  /// to[j · to_stride + i] instead: each column's pairs one after the other.
  void (*transposed_pairs)(uint32_t* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
                           int64_t columns);
};
SHARDWISE_PER_ISA(PackLoops, pack_loops)

}  // namespace shardwise::kernels

// The inner loop of dequantization: one row's codes as numbers.
#pragma once
#include <cstdint>

#include "shardwise/kernels/isa.h"

namespace shardwise::quant {

using kernels::best_isa;
using kernels::Bf16;
using kernels::Fp16;
using kernels::Isa;

/// Codes lie one behind the other, of a byte's two the first in its lower half.
struct RowCodes {
  const uint8_t* codes;
  const float* scales;
  const uint8_t* zeros;
};

/// What a matrix's rows have in common.
struct RowShape {
  int64_t width;            // columns
  int64_t first_code;       // codes before the first column's
  int64_t group_size;       // columns of a group
  int64_t into_group;       // columns of the first group before the first column
  const int32_t* group_of;  // null: in order
};

template <class T>
struct DequantizeLoops {
  /// w[j] = (code − zero) · scale, in fp32, of 4 or 8 bits.
  void (*row4)(T* w, const RowCodes& row, const RowShape& shape);
  void (*row8)(T* w, const RowCodes& row, const RowShape& shape);
};
SHARDWISE_PER_ISA(DequantizeLoops, dequantize_loops)

}  // namespace shardwise::quant

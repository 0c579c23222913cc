// The inner loop of dequantization, for one row of a quantized weight.
#pragma once
#include <cstdint>

#include "shardwise/kernels/isa.h"

namespace shardwise::quant {

/// One row of a quantized weight. Values are packed contiguously; of a byte's two 4-bit values, the first is
/// in the lower half.
struct QuantizedRow {
  const uint8_t* qweight;
  const float* scales;
  const uint8_t* zero_points;
};

/// The parameters that all rows of a matrix share.
struct RowShape {
  int64_t width;               // columns
  int64_t first_value;         // position of the first column's value in the packed row
  int64_t group_size;          // columns per group
  int64_t offset_in_group;     // position of the first column in its group
  const int32_t* group_index;  // the group of each column; null: in order
};

template <class T>
struct DequantizeLoops {
  /// w[j] = (quantized − zero_point) · scale in fp32, for 4 or 8 bits.
  void (*row4)(T* w, const QuantizedRow& row, const RowShape& shape);
  void (*row8)(T* w, const QuantizedRow& row, const RowShape& shape);
};
SHARDWISE_PER_ISA(DequantizeLoops, dequantize_loops)

}  // namespace shardwise::quant

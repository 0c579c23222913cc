// A quantized weight on a GPU, as its kernels read it.
#pragma once
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

}  // namespace shardwise::kernels::cuda

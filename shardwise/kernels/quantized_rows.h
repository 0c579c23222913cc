// Rows of a quantized weight in a device's memory, in the form in which files have them.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Rows of a shard of a quantized weight (quant/matrix.h): value = (quantized − zero_point) · scale.
struct QuantizedRows {
  int64_t bits;            // 4 or 8, per value
  int64_t group_size;      // columns of the unsharded row that share a scale and a zero point
  int64_t width;           // columns of the shard
  int64_t first_value;     // of the values in the first word, the one of the first column
  int64_t first_in_group;  // place of the first column in the first group, if columns are in order
  at::Tensor qweight;      // [rows, words] int32, values packed from the lowest bits up
  at::Tensor scales;       // [rows, groups] fp32
  at::Tensor zero_points;  // [rows, groups] uint8
  at::Tensor group_index;  // [width] int32, the group of each column; undefined if columns are in order

  int64_t rows() const { return qweight.size(0); }
};

}  // namespace shardwise::kernels

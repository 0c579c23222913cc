// Rows of one rank's shard of a quantized weight [out, in], as files and quantization produce them: full
// rows, or a range of columns.
//
// A range of columns may begin and end within a group or a packed word; both ranks then store that group's
// scale and that word. quantize.h and checkpoint/ create matrices, panels.h packs them for products.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/quant/format.h"

namespace shardwise::quant {

/// A shard of a quantized weight.
struct Matrix {
  Format format;        // bits and grouping
  int64_t in_features;  // columns of the unsharded weight
  base::Range columns;  // the columns of this shard
  at::Tensor qweight;  // [rows, words] int32, format.words_of(columns); values packed from the lowest bits up
  at::Tensor scales;   // [rows, groups] fp32: format.groups_of(columns, in_features)
  at::Tensor zero_points;  // [rows, groups] uint8
  at::Tensor group_index;  // [columns] int32, the group of each column; only with Grouping::by_column

  /// Allocates an uninitialized matrix.
  static Matrix empty(const Format& format, int64_t rows, int64_t in_features, const base::Range& columns,
                      at::Device device = at::kCPU);

  /// Returns the bytes that the tensors of `empty` have.
  static int64_t bytes_of(const Format& format, int64_t rows, int64_t in_features,
                          const base::Range& columns);

  /// Returns the number of output features.
  int64_t rows() const { return qweight.size(0); }
  /// Returns the number of columns of this shard.
  int64_t width() const { return columns.size(); }
  /// Returns the packed words of an unsharded row that this shard stores.
  base::Range words() const { return format.words_of(columns); }
  /// Returns the groups of an unsharded row that this shard stores.
  base::Range groups() const { return format.groups_of(columns, in_features); }
};

/// Copies all rows of `from`, a matrix of the same columns on any device, to the rows of `to` from `begin`
/// on. Errors: TORCH_INTERNAL_ASSERT if the shards differ.
void copy_rows_(Matrix& to, int64_t begin, const Matrix& from);

/// Checks that the tensors of `matrix` are on the CPU. Errors: c10::ValueError.
void check_on_cpu(const char* op, const Matrix& matrix);

}  // namespace shardwise::quant

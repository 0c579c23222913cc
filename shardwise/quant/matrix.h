// One rank's part of a quantized weight [out, in]: whole rows of it, or a run of columns.
//
// A run of columns may begin and end within a group or a word; both ranks then keep that group's scale and
// that word. What makes the numbers is quantize.h's or a checkpoint's, what multiplies is product.h's.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/quant/format.h"

namespace shardwise::quant {

struct Matrix {
  Format format;
  int64_t in_features;  // of a whole row
  base::Range columns;  // of a whole row: those held
  at::Tensor
      codes;  // [rows, words] int32, the first column's code in the lowest bits: format.words_of(columns)
  at::Tensor scales;    // [rows, groups] fp32: format.groups_of(columns, in_features)
  at::Tensor zeros;     // [rows, groups] uint8
  at::Tensor group_of;  // [columns] int32, by_column alone: the group of each

  /// Allocates, uninitialized.
  static Matrix empty(const Format& format, int64_t rows, int64_t in_features, const base::Range& columns);

  int64_t rows() const { return codes.size(0); }
  int64_t width() const { return columns.size(); }
  base::Range words() const { return format.words_of(columns); }
  base::Range groups() const { return format.groups_of(columns, in_features); }
  /// Of all its tensors.
  int64_t bytes() const;
};

/// Rows [rows.begin, rows.end) as numbers. `w` [rows, width] contiguous, fp64, fp32, bf16 or fp16: computed
/// in fp32, rounded once. Errors: c10::ValueError when shape or dtype do not fit.
void dequantize_out(at::Tensor& w, const Matrix& matrix, const base::Range& rows);

}  // namespace shardwise::quant

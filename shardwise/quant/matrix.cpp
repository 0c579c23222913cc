#include "shardwise/quant/matrix.h"

#include <ATen/ops/empty.h>

#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/quant/dequantize_isa.h"

namespace shardwise::quant {

using base::Range;
using kernels::elements;
using kernels::elements_;

namespace {

/// Returns the parameters that all rows share.
RowShape shape_of(const Matrix& m) {
  const Range words = m.words(), groups = m.groups();
  const int64_t group_size = m.format.group_size == 0 ? m.in_features : m.format.group_size;
  const int64_t offset_in_group = m.columns.begin - groups.begin * group_size;
  return {.width = m.width(),
          .first_value = m.columns.begin - words.begin * m.format.values_per_word(),
          .group_size = group_size,
          .offset_in_group = offset_in_group,
          .group_index = m.group_index.defined() ? elements<int32_t>(m.group_index) : nullptr};
}

/// Returns pointers to the values, scales and zero points of row `row`.
QuantizedRow row_of(const Matrix& m, int64_t row) {
  return {elements<uint8_t>(m.qweight) + row * m.qweight.size(1) * m.qweight.itemsize(),
          elements<float>(m.scales) + row * m.scales.size(1),
          elements<uint8_t>(m.zero_points) + row * m.zero_points.size(1)};
}

}  // namespace

Matrix Matrix::empty(const Format& format, int64_t rows, int64_t in_features, const Range& columns) {
  Matrix m{format, in_features, columns, {}, {}, {}, {}};
  m.qweight = at::empty({rows, m.words().size()}, at::kInt);
  m.scales = at::empty({rows, m.groups().size()}, at::kFloat);
  m.zero_points = at::empty({rows, m.groups().size()}, at::kByte);
  if (format.grouping == Grouping::by_column) m.group_index = at::empty({columns.size()}, at::kInt);
  return m;
}

int64_t Matrix::bytes() const {
  const int64_t index_bytes = group_index.defined() ? static_cast<int64_t>(group_index.nbytes()) : 0;
  return static_cast<int64_t>(qweight.nbytes() + scales.nbytes() + zero_points.nbytes()) + index_bytes;
}

void check_on_cpu(const char* op, const Matrix& matrix) {
  for (const at::Tensor& tensor : {matrix.qweight, matrix.scales, matrix.zero_points, matrix.group_index})
    if (tensor.defined()) kernels::check_on_cpu(op, tensor);
}

void dequantize_out(at::Tensor& w, const Matrix& matrix, const Range& rows) {
  check_on_cpu("dequantize", matrix);
  kernels::check_output("dequantize", "w", w, {rows.size(), matrix.width()}, w.scalar_type());
  const RowShape shape = shape_of(matrix);
  kernels::with_element_type("dequantize", w, [&]<class T>(T) {
    const auto loops = dequantize_loops<T>();
    const auto dequantize_row = matrix.format.bits == 4 ? loops.row4 : loops.row8;
    kernels::for_ranges(rows.size(), shape.width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        dequantize_row(elements_<T>(w) + i * shape.width, row_of(matrix, rows.begin + i), shape);
      }
    });
  });
}

}  // namespace shardwise::quant

#include "shardwise/quant/matrix.h"

#include <ATen/ops/empty.h>

#include "shardwise/base/mutation.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/quant/dequantize_isa.h"

namespace shardwise::quant {

using base::Range;
using kernels::elements;
using kernels::elements_;

namespace {

/// What all rows have in common.
RowShape shape_of(const Matrix& m) {
  const Range words = m.words(), groups = m.groups();
  const int64_t group_size = m.format.group_size == 0 ? m.in_features : m.format.group_size;
  const int64_t into_group = m.columns.begin - groups.begin * group_size;
  return {.width = m.width(),
          .first_code = m.columns.begin - words.begin * m.format.codes_per_word(),
          .group_size = group_size,
          .into_group = base::mutated(base::Mutation::first_group_whole) ? 0 : into_group,
          .group_of = m.group_of.defined() ? elements<int32_t>(m.group_of) : nullptr};
}

/// Row `row`'s codes and groups.
RowCodes row_of(const Matrix& m, int64_t row) {
  return {elements<uint8_t>(m.codes) + row * m.codes.size(1) * m.codes.itemsize(),
          elements<float>(m.scales) + row * m.scales.size(1),
          elements<uint8_t>(m.zeros) + row * m.zeros.size(1)};
}

}  // namespace

Matrix Matrix::empty(const Format& format, int64_t rows, int64_t in_features, const Range& columns) {
  Matrix m{format, in_features, columns, {}, {}, {}, {}};
  m.codes = at::empty({rows, m.words().size()}, at::kInt);
  m.scales = at::empty({rows, m.groups().size()}, at::kFloat);
  m.zeros = at::empty({rows, m.groups().size()}, at::kByte);
  if (format.grouping == Grouping::by_column) m.group_of = at::empty({columns.size()}, at::kInt);
  return m;
}

int64_t Matrix::bytes() const {
  const int64_t listed = group_of.defined() ? static_cast<int64_t>(group_of.nbytes()) : 0;
  return static_cast<int64_t>(codes.nbytes() + scales.nbytes() + zeros.nbytes()) + listed;
}

void dequantize_out(at::Tensor& w, const Matrix& matrix, const Range& rows) {
  kernels::check_output("dequantize", "w", w, {rows.size(), matrix.width()}, w.scalar_type());
  const RowShape shape = shape_of(matrix);
  kernels::with_element_type("dequantize", w.scalar_type(), [&]<class T>(T) {
    const auto loops = dequantize_loops<T>();
    const auto expand = matrix.format.bits == 4 ? loops.row4 : loops.row8;
    kernels::for_ranges(rows.size(), shape.width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        expand(elements_<T>(w) + i * shape.width, row_of(matrix, rows.begin + i), shape);
      }
    });
  });
}

}  // namespace shardwise::quant

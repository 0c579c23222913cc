#include "shardwise/quant/matrix.h"

#include <ATen/ops/empty.h>

#include "shardwise/kernels/tensors.h"

namespace shardwise::quant {

using base::Range;

Matrix Matrix::empty(const Format& format, int64_t rows, int64_t in_features, const Range& columns,
                     at::Device device) {
  Matrix m{format, in_features, columns, {}, {}, {}, {}};
  const auto make = [device](at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, at::TensorOptions(dtype).device(device));
  };
  m.qweight = make({rows, m.words().size()}, at::kInt);
  m.scales = make({rows, m.groups().size()}, at::kFloat);
  m.zero_points = make({rows, m.groups().size()}, at::kByte);
  if (format.grouping == Grouping::by_column) m.group_index = make({columns.size()}, at::kInt);
  return m;
}

int64_t Matrix::bytes_of(const Format& format, int64_t rows, int64_t in_features, const Range& columns) {
  const int64_t words = format.words_of(columns).size(),
                groups = format.groups_of(columns, in_features).size();
  const int64_t index_bytes = format.grouping == Grouping::by_column ? columns.size() * 4 : 0;
  return rows * (words * 4 + groups * (4 + 1)) + index_bytes;
}

void copy_rows_(Matrix& to, int64_t begin, const Matrix& from) {
  TORCH_INTERNAL_ASSERT(from.columns == to.columns && from.in_features == to.in_features &&
                        from.format == to.format && begin + from.rows() <= to.rows());
  const auto copy = [&](const at::Tensor& into, const at::Tensor& rows) {
    into.narrow(/*dim=*/0, begin, from.rows()).copy_(rows);
  };
  copy(to.qweight, from.qweight);
  copy(to.scales, from.scales);
  copy(to.zero_points, from.zero_points);
  if (to.group_index.defined()) to.group_index.copy_(from.group_index);
}

void check_on_cpu(const char* op, const Matrix& matrix) {
  for (const at::Tensor& tensor : {matrix.qweight, matrix.scales, matrix.zero_points, matrix.group_index})
    if (tensor.defined()) kernels::check_on_cpu(op, tensor);
}

}  // namespace shardwise::quant

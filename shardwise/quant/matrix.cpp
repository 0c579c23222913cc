#include "shardwise/quant/matrix.h"

#include <ATen/ops/empty.h>

#include "shardwise/kernels/tensors.h"

namespace shardwise::quant {

using base::Range;

Matrix Matrix::empty(const Format& format, int64_t rows, int64_t in_features, const Range& columns) {
  Matrix m{format, in_features, columns, {}, {}, {}, {}};
  m.qweight = at::empty({rows, m.words().size()}, at::kInt);
  m.scales = at::empty({rows, m.groups().size()}, at::kFloat);
  m.zero_points = at::empty({rows, m.groups().size()}, at::kByte);
  if (format.grouping == Grouping::by_column) m.group_index = at::empty({columns.size()}, at::kInt);
  return m;
}

void check_on_cpu(const char* op, const Matrix& matrix) {
  for (const at::Tensor& tensor : {matrix.qweight, matrix.scales, matrix.zero_points, matrix.group_index})
    if (tensor.defined()) kernels::check_on_cpu(op, tensor);
}

}  // namespace shardwise::quant

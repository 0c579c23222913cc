#include "shardwise/quant/device_matrix.h"

#include "shardwise/kernels/device.h"

namespace shardwise::quant {

using at::Tensor;
using base::Range;

namespace {

kernels::QuantizedRows rows_of(const Matrix& m, const Range& rows) {
  const auto some = [&rows](const Tensor& all) { return all.narrow(/*dim=*/0, rows.begin, rows.size()); };
  const int64_t group_size = m.format.group_size == 0 ? m.in_features : m.format.group_size;
  return {.bits = m.format.bits,
          .group_size = group_size,
          .width = m.width(),
          .first_value = m.columns.begin - m.words().begin * m.format.values_per_word(),
          .first_in_group = m.columns.begin - m.groups().begin * group_size,
          .qweight = some(m.qweight),
          .scales = some(m.scales),
          .zero_points = some(m.zero_points),
          .group_index = m.group_index};
}

}  // namespace

void product_on_device(const Tensor& y, const Tensor& x, const Matrix& w) {
  kernels::kernels_of_device("quantized product", {y, x, w.qweight})
      .quantized_row_product(y, x.contiguous(), rows_of(w, {0, w.rows()}));
}

void dequantize_on_device(const Tensor& w, const Matrix& matrix, const Range& rows) {
  kernels::kernels_of_device("dequantize", {w, matrix.qweight}).dequantize(w, rows_of(matrix, rows));
}

void embedding_on_device(const Tensor& y, const Tensor& ids, const Matrix& table, int64_t begin) {
  kernels::kernels_of_device("quantized embedding", {y, ids, table.qweight})
      .quantized_embedding(y, ids.contiguous(), rows_of(table, {0, table.rows()}), begin);
}

}  // namespace shardwise::quant

#include "tests/quant/support.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <random>

#include "tests/support/tensors.h"

namespace shardwise::testing {

using base::Range;
using quant::Format;
using quant::Grouping;
using quant::Matrix;
using quant::Panels;

std::vector<QuantizedKind> kinds_of(int64_t width) {
  const Range all{0, width};
  // A shard whose first and last group belong to other ranks too, and that begins within a word.
  const Range cut{13, 13 + width};
  return {{"int8", {8, 0}, all, width},
          {"int8 g32", {8, 32}, all, width},
          {"int8 g128 zero points", {8, 128, Grouping::in_order, true}, all, width},
          {"int8 cut", {8, 0}, cut, width + 60},
          {"int4", {4, 0}, all, width},
          {"int4 g32", {4, 32}, all, width},
          {"int4 g128", {4, 128}, all, width},
          {"int4 g20", {4, 20}, all, width},
          {"int4 g64 zero points", {4, 64, Grouping::in_order, true}, all, width},
          {"int4 g32 cut", {4, 32}, cut, width + 60},
          {"int4 g32 zero points cut", {4, 32, Grouping::in_order, true}, cut, width + 60},
          {"int8 act-order", {8, 64, Grouping::by_column, true}, all, width},
          {"int4 act-order", {4, 32, Grouping::by_column, true}, all, width},
          {"int4 act-order cut", {4, 32, Grouping::by_column, true}, cut, width + 60}};
}

Matrix random_matrix(const QuantizedKind& kind, int64_t rows, uint64_t seed) {
  Matrix m = Matrix::empty(kind.format, rows, kind.in_features, kind.columns);
  std::mt19937_64 random(seed);
  const auto fill = [&](const at::Tensor& bytes, int64_t count) {
    auto* byte = static_cast<uint8_t*>(bytes.mutable_data_ptr());
    const auto size = static_cast<int64_t>(bytes.nbytes());
    for (int64_t i = 0; i < size; ++i) byte[i] = static_cast<uint8_t>(random() % uint64_t(count));
  };
  fill(m.qweight, 256);
  fill(m.zero_points, kind.format.levels());
  if (!kind.format.has_zero_points) m.zero_points.fill_(kind.format.symmetric_zero_point());
  m.scales.copy_((random_tensor(m.scales.sizes().vec(), seed + 1, at::kFloat) / 256).to(at::kHalf));
  if (!m.group_index.defined()) return m;
  auto* group = m.group_index.mutable_data_ptr<int32_t>();
  for (int64_t j = 0; j < m.width(); ++j)
    group[j] = static_cast<int32_t>((m.columns.begin + j) / kind.format.group_size);
  std::shuffle(group, group + m.width(), random);
  return m;
}

Panels packed(const Matrix& m) {
  Panels panels = Panels::of(m.format, m.rows(), m.in_features, m.columns);
  if (m.group_index.defined()) set_groups_(panels, m.group_index);
  allocate_(panels);
  pack_rows_(panels, /*begin=*/0, m);
  return panels;
}

at::Tensor values_of(const Matrix& m) {
  const at::Tensor w = at::empty({m.rows(), m.width()}, at::kFloat);
  const Format& f = m.format;
  const int64_t size = f.group_size == 0 ? m.in_features : f.group_size, per_word = 32 / f.bits;
  const auto* const group_index = m.group_index.defined() ? m.group_index.const_data_ptr<int32_t>() : nullptr;
  for (int64_t row = 0; row < m.rows(); ++row) {
    const auto* words = m.qweight.const_data_ptr<int32_t>() + row * m.qweight.size(1);
    const auto* scales = m.scales.const_data_ptr<float>() + row * m.scales.size(1);
    const auto* zero_points = m.zero_points.const_data_ptr<uint8_t>() + row * m.zero_points.size(1);
    auto* const values = w.mutable_data_ptr<float>() + row * m.width();
    for (int64_t j = 0; j < m.width(); ++j) {
      const int64_t column = m.columns.begin + j;
      const auto word = static_cast<uint32_t>(words[column / per_word - m.columns.begin / per_word]);
      const auto value = static_cast<int>(word >> (column % per_word * f.bits) & ((1u << f.bits) - 1));
      const int64_t group = group_index ? group_index[j] : column / size - m.columns.begin / size;
      values[j] = static_cast<float>(value - zero_points[group]) * scales[group];
    }
  }
  return w;
}

at::Tensor dequantized(const Panels& panels, at::ScalarType dtype) {
  at::Tensor w = at::full({panels.rows, panels.width()}, 7, dtype);
  dequantize_out(w, panels, {0, panels.rows});
  return w;
}

}  // namespace shardwise::testing

// Dequantization, for every position of a value in its word and every position of a column in its group.
#include "shardwise/quant/matrix.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "shardwise/quant/dequantize_isa.h"
#include "tests/support/error_text.h"
#include "tests/support/instruction_set.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::matrix_test {
namespace {

using base::Range;
using quant::Format;
using quant::Matrix;

constexpr int64_t kRows = 3, kColumns = 53;

/// Returns a matrix with random quantized values, scales and zero points.
Matrix random_matrix(const Format& format, const Range& columns) {
  Matrix m = Matrix::empty(format, kRows, kColumns, columns);
  m.qweight.view(at::kByte).copy_(at::randint(256, m.qweight.view(at::kByte).sizes()));
  m.scales.copy_(random_tensor(m.scales.sizes().vec(), /*seed=*/1, at::kFloat));
  m.zero_points.copy_(at::randint(format.levels(), m.zero_points.sizes()));
  return m;
}

/// Dequantizes element by element from the packed words.
at::Tensor expected(const Matrix& m) {
  at::Tensor w = at::empty({m.rows(), m.width()}, at::kFloat);
  const Format& f = m.format;
  const int64_t size = f.group_size == 0 ? m.in_features : f.group_size, per_word = 32 / f.bits;
  for (int64_t row = 0; row < m.rows(); ++row) {
    for (int64_t column = m.columns.begin; column < m.columns.end; ++column) {
      const int64_t j = column - m.columns.begin;
      const auto word = static_cast<uint32_t>(
          m.qweight[row][column / per_word - m.columns.begin / per_word].item<int32_t>());
      const auto value = static_cast<float>(word >> (column % per_word * f.bits) & ((1 << f.bits) - 1));
      const int64_t group =
          m.group_index.defined() ? m.group_index[j].item<int32_t>() : column / size - m.columns.begin / size;
      const float zero_point = m.zero_points[row][group].item<uint8_t>();
      w[row][j] = (value - zero_point) * m.scales[row][group].item<float>();
    }
  }
  return w;
}

at::Tensor dequantized(const Matrix& m, at::ScalarType dtype) {
  at::Tensor w = at::empty({m.rows(), m.width()}, dtype);
  dequantize_out(w, m, {0, m.rows()});
  return w;
}

TEST(Dequantize, MatchesReferenceForEveryColumnRange) {
  for (const int64_t bits : {4, 8}) {
    for (const int64_t group_size : {0, 8, 32}) {
      for (const Range columns : {Range{0, 53}, Range{0, 8}, Range{5, 6}, Range{7, 53}, Range{13, 40},
                                  Range{32, 53}, Range{50, 50}}) {
        const Matrix m = random_matrix({bits, group_size}, columns);
        EXPECT_TRUE(same_bits(dequantized(m, at::kFloat), expected(m)))
            << bits << " bits, groups of " << group_size << ", from " << columns.begin << " to "
            << columns.end;
      }
    }
  }
}

TEST(Dequantize, MatchesReferenceWithAGroupPerColumn) {
  for (const int64_t bits : {4, 8}) {
    Matrix m = random_matrix({bits, 8, quant::Grouping::by_column}, {13, 40});
    EXPECT_EQ(m.scales.size(1), 7);  // all of 53 columns
    m.group_index.copy_(at::randint(7, {27}));
    EXPECT_TRUE(same_bits(dequantized(m, at::kFloat), expected(m))) << bits;
  }
}

TEST(Dequantize, RoundsOnceToEachDtype) {
  const Matrix m = random_matrix({4, 8}, {3, 53});
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(same_bits(dequantized(m, dtype), expected(m).to(dtype))) << dtype;
  }
}

// The scales of a damaged checkpoint: NaN with any payload, infinities, and products outside the dtype's
// range.
TEST(Dequantize, ConvertsNaNAndInfinityAsTorch) {
  Matrix m = random_matrix({8, 8}, {0, 53});
  float* scales = m.scales.mutable_data_ptr<float>();
  const float unusual[] = {std::bit_cast<float>(0x7f812345u),
                           std::bit_cast<float>(0xffc54321u),
                           INFINITY,
                           -INFINITY,
                           1e38f,
                           -3e-8f};
  for (int64_t i = 0; i < m.scales.numel(); ++i) scales[i] = unusual[i % 6];
  const at::Tensor exact = expected(m);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor w = dequantized(m, dtype);
    const auto* bits = static_cast<const uint16_t*>(w.const_data_ptr());
    for (int64_t i = 0; i < exact.numel(); ++i) {
      const float value = exact.const_data_ptr<float>()[i];
      ASSERT_EQ(bits[i], dtype == at::kHalf ? c10::Half(value).x : c10::BFloat16(value).x)
          << i << " " << value;
    }
  }
}

TEST(Dequantize, AcceptsARangeOfRows) {
  const Matrix m = random_matrix({4, 32}, {5, 53});
  at::Tensor w = at::empty({1, 48}, at::kFloat);
  dequantize_out(w, m, {2, 3});
  EXPECT_TRUE(same_bits(w, expected(m).narrow(0, 2, 1)));
  EXPECT_PRED2(test::contains, test::error_text([&] {
                 dequantize_out(w, m, {0, 2});
               }),
               "dequantize: w must be");
}

class DequantizeLoops : public EveryIsa {};
SHARDWISE_EVERY_ISA(DequantizeLoops);

TEST_P(DequantizeLoops, AreBitwiseExact) {
  const Matrix m = random_matrix({4, 0}, {0, kColumns});
  const quant::QuantizedRow row{static_cast<const uint8_t*>(m.qweight.const_data_ptr()),
                                static_cast<const float*>(m.scales.const_data_ptr()),
                                static_cast<const uint8_t*>(m.zero_points.const_data_ptr())};
  const quant::RowShape shape{.width = kColumns,
                              .first_value = 0,
                              .group_size = kColumns,
                              .offset_in_group = 0,
                              .group_index = nullptr};
  at::Tensor w = at::empty({1, kColumns}, at::kFloat);
  quant::dequantize_loops<float>(GetParam()).row4(w.mutable_data_ptr<float>(), row, shape);
  EXPECT_TRUE(same_bits(w, expected(m).narrow(0, 0, 1)));
}

TEST(Matrix, CountsItsBytes) {
  const Matrix m = Matrix::empty({4, 8}, 3, 53, {13, 40});  // words 1 to 5, groups 1 to 5
  EXPECT_EQ(m.bytes(), 3 * (4 * 4 + 4 * 4 + 4));
}

}  // namespace
}  // namespace shardwise::testing::matrix_test

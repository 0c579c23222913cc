// Quantization: its error, and that shards of a weight are quantized like the unsharded weight.
#include "shardwise/quant/quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/quant/reference.h"
#include "tests/quant/support.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::quantize_test {
namespace {

using base::Range;
using quant::Format;
using quant::Matrix;

/// Quantizes the columns `columns` of `w` with the scales of the full groups.
Matrix quantized(const at::Tensor& w, const Format& format, const Range& columns) {
  const int64_t in_features = w.size(1);
  const at::Tensor all = quant::group_maxima(w, format, in_features, {0, in_features});
  Matrix m = Matrix::empty(format, w.size(0), in_features, columns);
  const Range groups = m.groups();
  quant::quantize_rows_(m, /*begin=*/0, w.narrow(1, columns.begin, columns.size()).contiguous(),
                        all.narrow(1, groups.begin, groups.size()).contiguous());
  return m;
}

TEST(Quantize, MatchesReferenceOnEveryShard) {
  const at::Tensor w = random_tensor({5, 75}, /*seed=*/3, at::kFloat);
  for (const int64_t bits : {4, 8}) {
    for (const int64_t group_size : {0, 8, 32}) {
      const at::Tensor unsharded = requantized(w, bits, group_size);
      for (const Range columns :
           {Range{0, 75}, Range{0, 13}, Range{13, 14}, Range{14, 50}, Range{64, 75}, Range{9, 9}}) {
        EXPECT_TRUE(same_bits(values_of(quantized(w, {bits, group_size}, columns)),
                              unsharded.narrow(1, columns.begin, columns.size())))
            << bits << " bits in groups of " << group_size << " from " << columns.begin;
      }
    }
  }
}

/// The bound holds for all magnitudes, also if a scale is subnormal in fp16.
TEST(Quantize, ErrorIsAtMostHalfAScale) {
  const at::Tensor normal = random_tensor({8, 64}, /*seed=*/4, at::kFloat);
  for (const double magnitude : {1e-7, 1e-5, 3e-3, 1.0, 1e5}) {
    for (const int64_t bits : {4, 8}) {
      const at::Tensor w = (normal * magnitude).contiguous();
      const Matrix m = quantized(w, {bits, 16}, {0, 64});
      const at::Tensor scales = m.scales.repeat_interleave(16, /*dim=*/1);
      const at::Tensor errors = (values_of(m) - w).abs() / scales;
      EXPECT_LE(errors.max().item<float>(), 0.5f + 1e-5f) << magnitude << " " << bits;
      EXPECT_TRUE(same_bits(m.scales.to(at::kHalf).to(at::kFloat), m.scales));
    }
  }
}

TEST(Quantize, PreservesAGroupOfZeros) {
  const Matrix m = quantized(at::zeros({2, 16}, at::kFloat), {4, 8}, {0, 16});
  EXPECT_TRUE(same_bits(values_of(m), at::zeros({2, 16}, at::kFloat)));
  EXPECT_EQ(m.qweight[0][0].item<int32_t>(), static_cast<int32_t>(0x88888888));
  EXPECT_EQ(m.zero_points[1][1].item<uint8_t>(), 8);
}

TEST(Quantize, GroupMaximaPropagateNaNAndInf) {
  at::Tensor w = at::full({1, 16}, 0.5f, at::kFloat);
  w[0][3] = std::numeric_limits<float>::quiet_NaN();
  w[0][12] = -std::numeric_limits<float>::infinity();
  const at::Tensor maxima = quant::group_maxima(w, {8, 8}, 16, {0, 16});
  EXPECT_TRUE(std::isnan(maxima[0][0].item<float>()));
  EXPECT_TRUE(std::isinf(maxima[0][1].item<float>()));
  EXPECT_EQ(quant::max_magnitude({8, 8}), 65504.0f * 127);
}

}  // namespace
}  // namespace shardwise::testing::quantize_test

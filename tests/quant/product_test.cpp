// Products with quantized weights against fp64 products with the dequantized weights, which panels_test
// checks. ctest runs this suite once more for each lower instruction set (SHARDWISE_MAX_ISA).
#include "shardwise/quant/product.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardwise/base/isa.h"
#include "tests/quant/support.h"
#include "tests/support/error_text.h"
#include "tests/support/instruction_set.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::product_test {
namespace {

using quant::Panels;

/// The rows of x at which products change their loops, and others.
constexpr int64_t kRows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64, 65, 70};
constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor product(const at::Tensor& x, const Panels& w) {
  at::Tensor y = at::full({x.size(0), w.rows}, 7, x.options());
  quant::product_out(y, x, w);
  return y;
}

double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kDouble  ? 0x1p-53
         : dtype == at::kFloat ? 0x1p-24
         : dtype == at::kHalf  ? 0x1p-11
                               : 0x1p-8;
}

/// Bound of one output: y's rounding, x's (a run's largest magnitude at 2^-16), W's if it is dequantized to
/// x's dtype, that of sums of `width` terms, and fp16's subnormals.
at::Tensor bound_of(const at::Tensor& exact, const at::Tensor& x, const at::Tensor& w) {
  const at::ScalarType dtype = x.scalar_type();
  const double u = unit_roundoff(dtype), u_sum = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
  const at::Tensor wide = x.to(at::kDouble), magnitudes = w.abs();
  const at::Tensor sums = wide.abs().mm(magnitudes.t());
  const bool is_split = dtype == at::kBFloat16 || dtype == at::kHalf;
  const at::Tensor largest = wide.abs().amax(1, true).mm(magnitudes.sum(1, true).t());
  const double depth = std::sqrt(static_cast<double>(x.size(1))) + 8;
  return u * exact.abs() + (u + depth * u_sum) * sums + (is_split ? 0x1p-16 : 0) * largest +
         (dtype == at::kHalf ? 0x1p-25 : 1e-300) * (wide.abs().sum(1, true) + 1);
}

void expect_product(const QuantizedKind& kind, int64_t outputs, int64_t width) {
  const quant::Matrix m = random_matrix(kind, outputs, /*seed=*/1);
  const Panels panels = packed(m);
  const at::Tensor w = values_of(m).to(at::kDouble);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor all = random_tensor({70, width}, /*seed=*/2, dtype);
    const at::Tensor exact = all.to(at::kDouble).mm(w.t()), bound = bound_of(exact, all, w);
    for (const int64_t rows : kRows) {
      const at::Tensor y = product(all.narrow(0, 0, rows), panels);
      if (rows == 0) continue;
      const at::Tensor error = (y.to(at::kDouble) - exact.narrow(0, 0, rows)).abs();
      const double excess = (error / bound.narrow(0, 0, rows)).amax().item<double>();
      EXPECT_LE(excess, 1) << kind.name << ", " << rows << " rows, " << outputs << " × " << width << ", "
                           << dtype;
    }
  }
}

/// Returns `x` rounded to int8 per run of columns: to multiples of 1/127 of the run's largest magnitude.
at::Tensor rounded_to_int8(const at::Tensor& x, const Panels& w) {
  const kernels::PanelShape shape = w.layout.shape();
  const at::Tensor rounded = x.to(at::kFloat).contiguous().clone();
  for (int64_t row = 0; row < x.size(0); ++row) {
    float* values = rounded.mutable_data_ptr<float>() + row * x.size(1);
    int64_t position = 0;
    for (int64_t run = 0; run < shape.run_count; ++run) {
      std::vector<int64_t> columns;
      for (int64_t i = 0; i < shape.runs[run].lines * shape.columns_per_line(); ++i, ++position) {
        const int64_t column =
            w.column_order.defined() ? w.column_order.const_data_ptr<int32_t>()[position] : position;
        if (column < x.size(1)) columns.push_back(column);
      }
      float largest = 0;
      for (const int64_t column : columns) largest = std::max(largest, std::abs(values[column]));
      const float scale = largest / 127, inverse = 1 / scale;
      for (const int64_t column : columns)
        values[column] = scale == 0 ? 0 : scale * std::nearbyint(values[column] * inverse);
    }
  }
  return rounded;
}

void expect_product_with_int8_activations(const QuantizedKind& kind, int64_t outputs, int64_t width) {
  Panels panels = packed(random_matrix(kind, outputs, /*seed=*/1));
  panels.format.int8_activations = true;
  const at::Tensor w = dequantized(panels, at::kDouble);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor all = random_tensor({70, width}, /*seed=*/2, dtype);
    const at::Tensor x = rounded_to_int8(all, panels).to(at::kDouble), exact = x.mm(w.t());
    // The sums are those of fp32 for fp64 rows too.
    const at::Tensor bound = bound_of(exact, x.to(dtype == at::kDouble ? at::kFloat : dtype), w);
    for (const int64_t rows : {1, 2, 4, 5, 8, 9, 70}) {
      const at::Tensor y = product(all.narrow(0, 0, rows), panels).to(at::kDouble);
      const at::Tensor error = (y - exact.narrow(0, 0, rows)).abs();
      EXPECT_LE((error / bound.narrow(0, 0, rows)).amax().item<double>(), 1)
          << kind.name << ", " << rows << " rows, " << outputs << " × " << width << ", " << dtype;
    }
  }
}

class QuantizedProduct : public ::testing::TestWithParam<int64_t> {};

TEST_P(QuantizedProduct, IsThatOfTheDequantizedWeight) {
  const int64_t width = GetParam();
  for (const QuantizedKind& kind : kinds_of(width))
    for (const int64_t outputs : {1, 130}) expect_product(kind, outputs, width);
}

TEST_P(QuantizedProduct, WithInt8ActivationsIsThatOfRoundedRows) {
  const int64_t width = GetParam();
  if (!quant::can_round_activations()) {
    Panels panels = packed(random_matrix(kinds_of(width)[0], 130, /*seed=*/1));
    panels.format.int8_activations = true;
    EXPECT_PRED2(test::contains, test::error_text([&] {
                   product(at::zeros({2, width}), panels);
                 }),
                 "quantized product: int8 activations need a processor with AVX-512 VNNI; got ");
    return;
  }
  for (const QuantizedKind& kind : kinds_of(width)) expect_product_with_int8_activations(kind, 130, width);
}
INSTANTIATE_TEST_SUITE_P(Widths, QuantizedProduct, ::testing::Values(1, 7, 64, 200, 1376, 4096, 11008));

TEST(QuantizedProductOfFewRows, HasTheSameBitsForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const QuantizedKind& kind : kinds_of(1376)) {
    Panels panels = packed(random_matrix(kind, 300, /*seed=*/1));
    for (const bool int8_activations : {false, true}) {
      panels.format.int8_activations = int8_activations && quant::can_round_activations();
      for (const int64_t rows : {1, 3, 8, 9, 64, 70}) {
        const at::Tensor x = random_tensor({rows, 1376}, /*seed=*/2, at::kBFloat16);
        at::set_num_threads(1);
        const at::Tensor one = product(x, panels);
        at::set_num_threads(2);
        EXPECT_TRUE(same_bits(product(x, panels), one)) << kind.name << " " << rows;
        EXPECT_TRUE(same_bits(product(x, panels), one)) << kind.name << " " << rows << ", again";
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(QuantizedProductOfFewRows, PropagatesNanAndInfinity) {
  Panels panels = packed(random_matrix(kinds_of(200)[5], 70, /*seed=*/1));
  for (const bool int8_activations : {false, true}) {
    panels.format.int8_activations = int8_activations && quant::can_round_activations();
    for (const int64_t rows : {1, 5}) {
      for (const double value : {NAN, INFINITY}) {
        at::Tensor x = random_tensor({rows, 200}, /*seed=*/2, at::kBFloat16);
        x[rows - 1][150] = value;
        const at::Tensor y = product(x, panels);
        EXPECT_FALSE(y[rows - 1].isfinite().any().item<bool>()) << value;
        EXPECT_TRUE(rows == 1 || y.narrow(0, 0, rows - 1).isfinite().all().item<bool>());
      }
    }
  }
}

TEST(QuantizedProductOfFewRows, KeepsTheScaleOfSmallAndLargeRows) {
  const Panels panels = packed(random_matrix(kinds_of(200)[5], 70, /*seed=*/1));
  const at::Tensor w = dequantized(panels, at::kDouble);
  for (const double scale : {0.0, 1e-20, 1e20}) {
    const at::Tensor x = random_tensor({2, 200}, /*seed=*/2, at::kBFloat16) * scale;
    EXPECT_LT(relative_error(product(x, panels), x.to(at::kDouble).mm(w.t())), 0x1p-8) << scale;
  }
}

TEST(LoweredIsa, IsUsed) {
  if (lacks_limit()) GTEST_SKIP() << "the processor lacks SHARDWISE_MAX_ISA";
}

TEST(QuantizedProductChecks, Shapes) {
  const Panels panels = packed(random_matrix(kinds_of(8)[1], 4, /*seed=*/5));
  EXPECT_PRED2(test::contains, test::error_text([&] {
                 product(at::zeros({2, 9}, at::kFloat), panels);
               }),
               "quantized product: needs [m, 8] to [m, 4] contiguous, of one dtype; got [2, 9]");
}

TEST(QuantizedEmbedding, LooksUpLocalIdsAndZeroesOthers) {
  const Panels panels = packed(random_matrix(kinds_of(40)[5], 6, /*seed=*/6));  // ids 10 to 15
  at::Tensor ids = at::empty({2, 2}, at::kLong);
  const int64_t list[] = {9, 10, 15, 16};
  std::copy(std::begin(list), std::end(list), ids.mutable_data_ptr<int64_t>());
  at::Tensor y = at::full({2, 2, 40}, 7, at::kBFloat16);
  quant::embedding_out(y, ids, panels, /*begin=*/10);
  const at::Tensor w = dequantized(panels, at::kBFloat16), zero = at::zeros({40}, at::kBFloat16);
  EXPECT_TRUE(same_bits(y[0][0], zero) && same_bits(y[1][1], zero));
  EXPECT_TRUE(same_bits(y[0][1], w[0]) && same_bits(y[1][0], w[5]));
}

}  // namespace
}  // namespace shardwise::testing::product_test

// Quantized weights on the emulated device: products, dequantized rows and embeddings of every format.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "shardwise/model/decoder.h"
#include "shardwise/quant/product.h"
#include "tests/device/device.h"
#include "tests/quant/support.h"
#include "tests/support/error_text.h"
#include "tests/support/small_config.h"
#include "tests/support/tensors.h"

namespace shardwise::device_test {
namespace {

using at::Tensor;

constexpr int64_t kOutputs = 37, kColumns = 96;

/// Returns the weight on `device`, loaded in two parts as files are.
quant::Panels loaded(const quant::Matrix& matrix, at::Device device) {
  quant::Panels panels =
      quant::Panels::of(matrix.format, matrix.rows(), matrix.in_features, matrix.columns, device);
  if (matrix.group_index.defined()) quant::set_groups_(panels, matrix.group_index);
  quant::allocate_(panels);
  const int64_t half = matrix.rows() / 2;
  for (const base::Range& rows : {base::Range{0, half}, base::Range{half, matrix.rows()}}) {
    quant::Matrix some = matrix;
    for (Tensor* tensor : {&some.qweight, &some.scales, &some.zero_points})
      *tensor = tensor->narrow(0, rows.begin, rows.size()).contiguous();
    quant::pack_rows_(panels, rows.begin, some);
  }
  return panels;
}

/// Calls check(matrix, panels on the device) for each kind of weight.
template <class Check>
void for_each_kind(const Check& check) {
  const at::Device device = testing::on_device().device();
  for (const testing::QuantizedKind& kind : testing::kinds_of(kColumns)) {
    if (kind.format.int8_activations) continue;
    SCOPED_TRACE(kind.name);
    const quant::Matrix matrix = testing::random_matrix(kind, kOutputs, /*seed=*/1);
    check(matrix, loaded(matrix, device));
  }
}

// Sums of 96 products: their roundings, and one to the dtype of y.
TEST(DeviceQuantized, ProductsAreThoseOfTheValues) {
  for_each_kind([](const quant::Matrix& matrix, const quant::Panels& panels) {
    const Tensor values = testing::values_of(matrix).to(at::kDouble);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t m : {1, 3, 8, 9, 20}) {
        const Tensor x = testing::random_tensor({m, kColumns}, 2, dtype), wide = x.to(at::kDouble);
        Tensor y = at::empty({m, kOutputs}, x.options().device(panels.device));
        quant::product_out(y, x.to(panels.device), panels);
        const Tensor expected = wide.matmul(values.t()), sizes = wide.abs().matmul(values.abs().t());
        const double unit = dtype == at::kFloat ? 0x1p-24 : 0x1p-8;
        // Values of many rows are rounded to the dtype first.
        const Tensor bound = sizes * (kColumns * 0x1p-24 + unit) + expected.abs() * unit + 1e-30;
        EXPECT_TRUE(((y.cpu().to(at::kDouble) - expected).abs() <= bound).all().item<bool>())
            << m << " rows of " << dtype;
      }
    }
  });
}

TEST(DeviceQuantized, RowsAreThoseOfTheCpu) {
  for_each_kind([](const quant::Matrix& matrix, const quant::Panels& panels) {
    const quant::Panels on_cpu = testing::packed(matrix);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const base::Range rows{5, 30};
      Tensor expected = at::empty({rows.size(), kColumns}, dtype),
             actual = at::empty(expected.sizes(), expected.options().device(panels.device));
      quant::dequantize_out(expected, on_cpu, rows);
      quant::dequantize_out(actual, panels, rows);
      EXPECT_TRUE(actual.cpu().equal(expected));
      const Tensor ids = at::tensor({12, 3, 46, 10, 47, 12}, at::kLong).view({2, 3});
      expected = at::empty({2, 3, kColumns}, dtype);
      actual = at::empty(expected.sizes(), expected.options().device(panels.device));
      quant::embedding_out(expected, ids, on_cpu, /*begin=*/10);
      quant::embedding_out(actual, ids.to(panels.device), panels, 10);
      EXPECT_TRUE(actual.cpu().equal(expected));
    }
  });
}

// A row alone has the bits that it has among others, so that drafted tokens change none.
TEST(DeviceQuantized, AFewRowsHaveTheBitsOfEach) {
  for_each_kind([](const quant::Matrix&, const quant::Panels& panels) {
    const int64_t m = quant::rows_with_equal_bits(at::kBFloat16, panels);
    const Tensor x = testing::random_tensor({m, kColumns}, 3, at::kBFloat16).to(panels.device);
    Tensor together = at::empty({m, kOutputs}, x.options());
    quant::product_out(together, x, panels);
    for (int64_t row = 0; row < m; ++row) {
      Tensor alone = at::empty({1, kOutputs}, x.options());
      quant::product_out(alone, x.narrow(0, row, 1), panels);
      EXPECT_TRUE(alone.cpu().equal(together.narrow(0, row, 1).cpu())) << row;
    }
  });
}

TEST(DeviceQuantized, CountsItsBytes) {
  for_each_kind([](const quant::Matrix& matrix, const quant::Panels& panels) {
    size_t bytes = 0;
    for (const Tensor& tensor : {matrix.qweight, matrix.scales, matrix.zero_points, matrix.group_index})
      bytes += tensor.defined() ? tensor.nbytes() : 0;
    EXPECT_EQ(panels.bytes(), static_cast<int64_t>(bytes));
  });
}

TEST(DeviceQuantized, RefusesInt8Activations) {
  config::Config config = testing::small_config();
  config.quantization = {.bits = 8, .int8_activations = true};
  EXPECT_EQ(
      test::error_text<c10::ValueError>([&] {
        model::DecoderWeights(config, testing::on_device(), at::kFloat, model::WeightUse::inference);
      }),
      "DecoderWeights: activations must be rounded to int8 on the CPU; got emulated:0; use --device cpu");
}

}  // namespace
}  // namespace shardwise::device_test

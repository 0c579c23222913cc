// Products of a few rows with quantized weights by the CUDA kernel and by the CPU: the dequantized values
// have equal bits, and sums differ by their roundings.
#include "shardwise/kernels/quantized_row_product_cuda.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <gtest/gtest.h>

#include "shardwise/quant/product.h"
#include "tests/emulator/cpu/tensors.h"
#include "tests/quant/support.h"
#include "tests/support/tensors.h"

namespace shardwise::kernels::cuda::quantized_row_product_cpu_test {
namespace {

/// A matrix on the device.
struct OnDevice {
  explicit OnDevice(const quant::Matrix& of)
      : matrix(of),
        qweight(on_device<uint32_t>(of.qweight)),
        scales(on_device<float>(of.scales)),
        zero_points(on_device<uint8_t>(of.zero_points)),
        group_index(of.group_index.defined() ? on_device<int32_t>(of.group_index) : DeviceArray<int32_t>(1)) {
  }

  QuantizedWeight weight() const {
    const quant::Format& format = matrix.format;
    const int64_t group_size = format.group_size == 0 ? matrix.in_features : format.group_size;
    return {qweight.data(),
            scales.data(),
            format.has_zero_points ? zero_points.data() : nullptr,
            matrix.group_index.defined() ? group_index.data() : nullptr,
            static_cast<int>(matrix.rows()),
            static_cast<int>(matrix.width()),
            static_cast<int>(format.bits),
            static_cast<int>(matrix.qweight.size(1)),
            static_cast<int>(matrix.scales.size(1)),
            static_cast<int>(matrix.columns.begin % format.values_per_word()),
            static_cast<int>(matrix.columns.begin % group_size),
            static_cast<int>(group_size)};
  }

  const quant::Matrix& matrix;
  DeviceArray<uint32_t> qweight;
  DeviceArray<float> scales;
  DeviceArray<uint8_t> zero_points;
  DeviceArray<int32_t> group_index;
};

at::Tensor product(const at::Tensor& x, const OnDevice& w) {
  const int64_t m = x.size(0), n = w.matrix.rows();
  const DeviceArray<float> on_x = on_device<float>(x), on_y(m * n);
  quantized_row_product(QuantizedRowProduct<float>{on_y.data(), on_x.data(), w.weight(), m}, nullptr);
  cudaDeviceSynchronize();
  const at::Tensor y = at::empty({m, n}, at::kFloat);
  std::copy_n(on_y.data(), m * n, y.mutable_data_ptr<float>());
  return y;
}

/// All widths have cut, padded and act-order kinds; 96 is of whole packs for int4 and int8.
TEST(CudaCpuQuantizedRowProduct, HasTheCpusValues) {
  for (const int64_t width : {96, 77})
    for (const testing::QuantizedKind& kind : testing::kinds_of(width)) {
      const quant::Matrix matrix = testing::random_matrix(kind, /*rows=*/9, /*seed=*/1);
      const at::Tensor y = product(at::eye(width, at::kFloat), OnDevice(matrix));
      const at::Tensor w = testing::dequantized(testing::packed(matrix), at::kFloat).t();
      EXPECT_TRUE(y.equal(w)) << kind.name << " " << width;
    }
}

/// Each rounds a product's sum at most once for each column and group; the sizes are rounded, too.
TEST(CudaCpuQuantizedRowProduct, HasTheCpusSums) {
  for (const int64_t width : {1024, 999})
    for (const testing::QuantizedKind& kind : testing::kinds_of(width)) {
      const quant::Matrix matrix = testing::random_matrix(kind, /*rows=*/9, /*seed=*/1);
      const quant::Panels panels = testing::packed(matrix);
      const at::Tensor x = testing::random_tensor({3, width}, /*seed=*/2, at::kFloat);
      at::Tensor of_cpu = at::empty({3, 9}, at::kFloat);
      quant::product_out(of_cpu, x, panels);
      const at::Tensor size = x.abs().mm(testing::values_of(matrix).abs().t());
      const at::Tensor error = (product(x, OnDevice(matrix)) - of_cpu).abs();
      const double roundings = 2.0 * static_cast<double>(width) + 64;
      EXPECT_LE((error / size).max().item<double>(), roundings * 0x1p-24) << kind.name << " " << width;
    }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::quantized_row_product_cpu_test

// RMSNorm's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/rms_norm_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/emulator/kernels/norm_reference.h"
#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::rms_norm_test {
namespace {

double rstd_of(const double* x, int h) {
  return moments_of(x, h, /*has_mean=*/false).rstd;
}

template <class T>
void check_forward(const NormShape& shape) {
  const size_t n = shape.rows * shape.h;
  const Values<T> x(n, 1, 0), weight(shape.h, 2, 1);
  const DeviceArray<T> y(n);
  const DeviceArray<float> rstd(shape.rows);
  rms_norm(RmsNorm<T>{y.data(), rstd.data(), x.data(), weight.data(), shape.rows, shape.h,
                      static_cast<float>(kEps)},
           nullptr);
  cudaDeviceSynchronize();
  expect_normalized<T>({y.values(), rstd.values(), {}, x.wide, weight.wide, nullptr}, shape);
}

template <class T>
void check_backward(const NormShape& shape, int blocks, bool has_residual) {
  const int h = shape.h;
  const size_t n = shape.rows * h;
  const Values<T> x(n, 1, 0), dy(n, 3, 0), weight(h, 2, 1), residual(n, 4, 0);
  std::vector<double> inverse, weight_grad(h, 2), of_weight(h, 2);  // of_weight: magnitudes
  const DeviceArray<float> rstd(shape.rows,
                                [&](size_t row) { return static_cast<float>(rstd_of(&x.wide[row * h], h)); });
  const DeviceArray<T> dx(n);
  const DeviceArray<float> grad(h, [](size_t) { return 2.0f; }), partial(size_t{1} * blocks * h);
  rms_norm_backward(
      RmsNormBackward<T>{dx.data(), grad.data(), partial.data(), dy.data(), x.data(), weight.data(),
                         rstd.data(), shape.rows, h, blocks, has_residual ? residual.data() : nullptr},
      nullptr);
  cudaDeviceSynchronize();
  const double error = 2 * roundings(h) * kUnit;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const double *of_x = &x.wide[row * h], *of_y = &dy.wide[row * h], r = rstd.values()[row];
    double dot = 0, size = 0;
    for (int i = 0; i < h; ++i) {
      dot += of_y[i] * weight.wide[i] * of_x[i];
      size += std::abs(of_y[i] * weight.wide[i] * of_x[i]);
    }
    for (int i = 0; i < h; ++i) {
      const double u = of_y[i] * weight.wide[i], along = r * r * dot / h,
                   added = has_residual ? residual.wide[row * h + i] : 0,
                   value = r * (u - of_x[i] * along) + added;
      const double magnitude = r * (std::abs(u) + std::abs(of_x[i]) * r * r * size / h);
      ASSERT_NEAR(static_cast<float>(dx.values()[row * h + i]), value,
                  rounding_to<T>(value) + error * magnitude + kUnit * std::abs(added))
          << row << " " << i << " of " << h;
      weight_grad[i] += of_y[i] * of_x[i] * r;
      of_weight[i] += std::abs(of_y[i] * of_x[i] * r);
    }
  }
  for (int i = 0; i < h; ++i)
    ASSERT_NEAR(grad.values()[i], weight_grad[i], error * of_weight[i]) << i << " of " << h;
}

TEST(CudaRmsNorm, ForwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const NormShape& shape : norm_shapes()) {
      check_forward<float>(shape);
      check_forward<__nv_bfloat16>(shape);
      check_forward<__half>(shape);
    }
  });
}

TEST(CudaRmsNorm, BackwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const NormShape& shape : norm_shapes()) {
      if (shape.h > 8200) continue;  // backward's packs end at 8192
      for (const int blocks : {1, 2}) {
        if (blocks > shape.rows) continue;
        check_backward<float>(shape, blocks, /*has_residual=*/blocks == 2);
        check_backward<__nv_bfloat16>(shape, blocks, /*has_residual=*/blocks == 1);
      }
    }
  });
}

/// Rows that are not aligned to 16 bytes have the bits of those that are.
TEST(CudaRmsNorm, UnalignedRowsHaveTheSameMeaning) {
  constexpr int kH = 64;
  const Values<float> x(kH + 1, 1, 0), weight(kH, 2, 1);
  const DeviceArray<float> y(kH + 1), rstd(1);
  rms_norm(
      RmsNorm<float>{y.data() + 1, rstd.data(), x.data() + 1, weight.data(), 1, kH, static_cast<float>(kEps)},
      nullptr);
  cudaDeviceSynchronize();
  const double expected = rstd_of(&x.wide[1], kH);
  for (int i = 0; i < kH; ++i)
    EXPECT_NEAR(y.values()[1 + i], x.wide[1 + i] * expected * weight.wide[i], 1e-6) << i;
  EXPECT_TRUE(std::isnan(y.values()[0]));
}

TEST(CudaRmsNorm, WithoutAWeightGradientNothingIsSummed) {
  constexpr int kH = 128;
  const Values<float> x(kH, 1, 0), weight(kH, 2, 1);
  const DeviceArray<float> dx(kH), rstd(1, [](size_t) { return 1.0f; });
  rms_norm_backward(RmsNormBackward<float>{dx.data(), nullptr, nullptr, x.data(), x.data(), weight.data(),
                                           rstd.data(), 1, kH, 4},
                    nullptr);
  cudaDeviceSynchronize();
  for (const float value : dx.values()) EXPECT_FALSE(std::isnan(value));
}

}  // namespace
}  // namespace shardwise::kernels::cuda::rms_norm_test

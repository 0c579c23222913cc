// LayerNorm's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/layer_norm_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/emulator/kernels/norm_reference.h"
#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::layer_norm_test {
namespace {

/// The rows have the mean `mean`.
template <class T>
void check_forward(const NormShape& shape, double mean) {
  const int h = shape.h;
  const size_t n = shape.rows * h;
  const Values<T> x(n, 1, mean), weight(h, 2, 1), bias(h, 3, 0);
  const DeviceArray<T> y(n);
  const DeviceArray<float> means(shape.rows), rstds(shape.rows);
  layer_norm(LayerNorm<T>{y.data(), means.data(), rstds.data(), x.data(), weight.data(), bias.data(),
                          shape.rows, h, static_cast<float>(kEps)},
             nullptr);
  cudaDeviceSynchronize();
  expect_normalized<T>({y.values(), rstds.values(), means.values(), x.wide, weight.wide, &bias.wide}, shape);
}

enum class Wanted { both, weight, bias, none };

template <class T>
struct BackwardInputs {
  explicit BackwardInputs(const NormShape& shape)
      : x(shape.rows * shape.h, 1, 3),
        dy(shape.rows * shape.h, 3, 0),
        residual(shape.rows * shape.h, 4, 0),
        weight(shape.h, 2, 1),
        mean(shape.rows,
             [&](size_t row) { return float(moments_of(&x.wide[row * shape.h], shape.h, true).mean); }),
        rstd(shape.rows,
             [&](size_t row) { return float(moments_of(&x.wide[row * shape.h], shape.h, true).rstd); }) {}
  Values<T> x, dy, residual, weight;
  DeviceArray<float> mean, rstd;
};

/// Gradients that are not wanted stay what they were, and so do their partial sums.
void check_gradient(const DeviceArray<float>& grad, bool is_wanted, const std::vector<double>& sums,
                    const std::vector<double>& sizes, int h) {
  for (int i = 0; i < h; ++i)
    ASSERT_NEAR(grad.values()[i], is_wanted ? sums[i] : 2, 2 * roundings(h) * kUnit * sizes[i] + kUnit)
        << i << " of " << h;
}

template <class T>
void check_backward(const NormShape& shape, int blocks, Wanted wanted, bool has_residual) {
  const int h = shape.h;
  const BackwardInputs<T> in(shape);
  const DeviceArray<T> dx(shape.rows * h);
  const auto two = [](size_t) { return 2.0f; };
  const DeviceArray<float> weight_grad(h, two), bias_grad(h, two), partial(size_t{2} * blocks * h);
  const bool of_weight = wanted == Wanted::both || wanted == Wanted::weight;
  const bool of_bias = wanted == Wanted::both || wanted == Wanted::bias;
  layer_norm_backward(
      LayerNormBackward<T>{
          dx.data(), of_weight ? weight_grad.data() : nullptr, of_bias ? bias_grad.data() : nullptr,
          wanted == Wanted::none ? nullptr : partial.data(), in.dy.data(), in.x.data(), in.weight.data(),
          in.mean.data(), in.rstd.data(), shape.rows, h, blocks, has_residual ? in.residual.data() : nullptr},
      nullptr);
  cudaDeviceSynchronize();
  const double error = 2 * roundings(h) * kUnit;
  std::vector<double> weights(h, 2), biases(h, 2), weight_sizes(h, 2), bias_sizes(h, 2);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const double mean = in.mean.values()[row], r = in.rstd.values()[row];
    const auto normalized = [&](int i) { return (in.x.wide[row * h + i] - mean) * r; };
    const auto u = [&](int i) { return in.dy.wide[row * h + i] * in.weight.wide[i]; };
    double of_u = 0, along = 0, size_of_u = 0, size_along = 0;
    for (int i = 0; i < h; ++i) {
      of_u += u(i) / h;
      along += u(i) * normalized(i) / h;
      size_of_u += std::abs(u(i)) / h;
      size_along += std::abs(u(i) * normalized(i)) / h;
    }
    for (int i = 0; i < h; ++i) {
      const double residual = has_residual ? in.residual.wide[row * h + i] : 0, n = normalized(i);
      const double value = r * (u(i) - of_u - n * along) + residual;
      const double size = r * (std::abs(u(i)) + size_of_u + std::abs(n) * size_along);
      ASSERT_NEAR(static_cast<float>(dx.values()[row * h + i]), value,
                  error * size + kUnit * std::abs(residual) + rounding_to<T>(value))
          << row << " " << i << " of " << h;
      const double dy = in.dy.wide[row * h + i];
      weights[i] += dy * n;
      biases[i] += dy;
      weight_sizes[i] += std::abs(dy * n);
      bias_sizes[i] += std::abs(dy);
    }
  }
  check_gradient(weight_grad, of_weight, weights, weight_sizes, h);
  check_gradient(bias_grad, of_bias, biases, bias_sizes, h);
  for (int half = 0; half < 2; ++half) {
    if (half == 0 ? of_weight : of_bias) continue;
    for (int i = 0; i < blocks * h; ++i)
      ASSERT_TRUE(std::isnan(partial.values()[half * blocks * h + i])) << half << " " << i;
  }
}

TEST(CudaLayerNorm, ForwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const NormShape& shape : norm_shapes()) {
      check_forward<float>(shape, 0);
      check_forward<__nv_bfloat16>(shape, 0);
      check_forward<__half>(shape, 0);
    }
  });
}

/// Where the squares' mean less the mean's square would have no digit.
TEST(CudaLayerNorm, ForwardKeepsTheDigitsOfRowsFarFromZero) {
  for (const int h : {64, 65, 1000, 4096, 5001}) check_forward<float>({2, h}, 3000);
}

TEST(CudaLayerNorm, BackwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const NormShape& shape : norm_shapes()) {
      if (shape.h > 8200) continue;  // backward's packs end at 8192
      for (const int blocks : {1, 2}) {
        if (blocks > shape.rows) continue;
        check_backward<float>(shape, blocks, Wanted::both, /*has_residual=*/blocks == 2);
        check_backward<__nv_bfloat16>(shape, blocks, Wanted::both, /*has_residual=*/blocks == 1);
      }
    }
  });
}

TEST(CudaLayerNorm, BackwardSumsOnlyTheGradientsThatAreWanted) {
  for (const int h : {64, 65, 520}) {
    for (const Wanted wanted : {Wanted::weight, Wanted::bias, Wanted::none}) {
      check_backward<float>({5, h}, 2, wanted, /*has_residual=*/true);
      check_backward<__nv_bfloat16>({5, h}, 3, wanted, /*has_residual=*/false);
    }
  }
}

/// Rows of 64 elements that are not aligned to 16 bytes, one pointer at a time.
TEST(CudaLayerNorm, UnalignedRowsHaveTheSameMeaning) {
  constexpr int kH = 64;
  for (const int unaligned : {0, 1, 2, 3}) {
    const auto at = [&](auto* data, int which) { return data + (which == unaligned ? 1 : 0); };
    const Values<float> x(kH + 1, 1, 0), weight(kH + 1, 2, 1), bias(kH + 1, 3, 0);
    const DeviceArray<float> y(kH + 1), mean(1), rstd(1);
    layer_norm(LayerNorm<float>{at(y.data(), 0), mean.data(), rstd.data(), at(x.data(), 1),
                                at(weight.data(), 2), at(bias.data(), 3), 1, kH, static_cast<float>(kEps)},
               nullptr);
    cudaDeviceSynchronize();
    const Moments m = moments_of(at(x.wide.data(), 1), kH, true);
    for (int i = 0; i < kH; ++i) {
      const double value = (at(x.wide.data(), 1)[i] - m.mean) * m.rstd * at(weight.wide.data(), 2)[i] +
                           at(bias.wide.data(), 3)[i];
      EXPECT_NEAR(at(y.data(), 0)[i], value, 3e-6) << i << " " << unaligned;
    }
    EXPECT_TRUE(std::isnan(y.values()[unaligned == 0 ? 0 : kH]));
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::layer_norm_test

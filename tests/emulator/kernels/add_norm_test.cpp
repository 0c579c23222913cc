// The CUDA kernels that add a layer's output and normalize the sum, on the emulator: the residual bit for
// bit, and its norm against fp64.
#include "shardwise/kernels/add_norm_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/emulator/kernels/norm_reference.h"
#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::add_norm_test {
namespace {

enum class Norm { rms, layer };
enum class Place { apart, in_place };  // in_place: the residual is written over x

template <class T>
double rounded(double x) {
  return static_cast<float>(static_cast<T>(static_cast<float>(x)));
}

/// Each addition is rounded to fp32, then to T.
template <class T>
std::vector<double> sums(const Values<T>& x, const Values<T>& y, const Values<T>* bias) {
  std::vector<double> all;
  for (size_t i = 0; i < x.wide.size(); ++i) {
    const double biased = bias ? rounded<T>(y.wide[i] + bias->wide[i % bias->wide.size()]) : y.wide[i];
    all.push_back(rounded<T>(x.wide[i] + biased));
  }
  return all;
}

template <class T>
void check(const NormShape& shape, Norm norm, bool has_bias, Place place = Place::apart) {
  const int h = shape.h;
  const size_t n = shape.rows * h;
  const Values<T> x(n, 1, 0), y(n, 2, 0), bias(h, 3, 0), weight(h, 4, 1), norm_bias(h, 5, 0);
  const std::vector<double> expected = sums(x, y, has_bias ? &bias : nullptr);
  const bool is_layer = norm == Norm::layer;
  const DeviceArray<T> apart(n), output(n);
  const DeviceArray<T>& residual = place == Place::apart ? apart : x.device;
  const DeviceArray<float> mean(shape.rows), rstd(shape.rows);
  (is_layer ? add_layer_norm<T>
            : add_rms_norm<T>)(AddNorm<T>{residual.data(), output.data(), is_layer ? mean.data() : nullptr,
                                          rstd.data(), x.data(), y.data(), has_bias ? bias.data() : nullptr,
                                          weight.data(), is_layer ? norm_bias.data() : nullptr, shape.rows, h,
                                          static_cast<float>(kEps)},
                               nullptr);
  cudaDeviceSynchronize();
  for (size_t i = 0; i < n; ++i)
    ASSERT_EQ(static_cast<float>(residual.values()[i]), expected[i]) << i << " of " << h;
  expect_normalized<T>({output.values(), rstd.values(), mean.values(), expected, weight.wide,
                        is_layer ? &norm_bias.wide : nullptr},
                       shape);
}

TEST(CudaAddNorm, RmsNormMatchesInEveryOrder) {
  in_every_order([] {
    for (const NormShape& shape : norm_shapes()) {
      check<float>(shape, Norm::rms, /*has_bias=*/true);
      check<__nv_bfloat16>(shape, Norm::rms, /*has_bias=*/true);
      check<__half>(shape, Norm::rms, /*has_bias=*/true);
    }
  });
}

TEST(CudaAddNorm, LayerNormMatchesInEveryOrder) {
  in_every_order([] {
    for (const NormShape& shape : norm_shapes()) {
      check<float>(shape, Norm::layer, /*has_bias=*/true);
      check<__nv_bfloat16>(shape, Norm::layer, /*has_bias=*/true);
      check<__half>(shape, Norm::layer, /*has_bias=*/true);
    }
  });
}

TEST(CudaAddNorm, NoBiasIsNotRounded) {
  for (const int h : {7, 64, 520}) {
    for (const Norm norm : {Norm::rms, Norm::layer}) {
      check<float>({3, h}, norm, /*has_bias=*/false);
      check<__nv_bfloat16>({3, h}, norm, /*has_bias=*/false);
      check<__half>({3, h}, norm, /*has_bias=*/false);
    }
  }
}

TEST(CudaAddNorm, TheResidualMayReplaceX) {
  for (const int h : {65, 520}) {
    check<float>({3, h}, Norm::rms, /*has_bias=*/true, Place::in_place);
    check<__nv_bfloat16>({3, h}, Norm::layer, /*has_bias=*/false, Place::in_place);
  }
}

/// One pointer at a time is not aligned to 16 bytes.
TEST(CudaAddNorm, UnalignedRowsHaveTheSameMeaning) {
  constexpr int kH = 64;
  const auto value = [](size_t i) { return static_cast<float>(i % 7) - 2.0f; };
  std::vector<float> expected;
  for (int unaligned = -1; unaligned < 7; ++unaligned) {
    std::vector<std::unique_ptr<DeviceArray<float>>> all;
    const auto array = [&](int which, bool is_input) {
      const int shift = which == unaligned ? 1 : 0;
      all.push_back(is_input ? std::make_unique<DeviceArray<float>>(
                                   kH + 1, [&](size_t i) { return value(i - shift + which); })
                             : std::make_unique<DeviceArray<float>>(kH + 1));
      return all.back()->data() + shift;
    };
    float *const residual = array(0, false), *const norm = array(1, false);
    const DeviceArray<float> mean(1), rstd(1);
    add_layer_norm(
        AddNorm<float>{residual, norm, mean.data(), rstd.data(), array(2, true), array(3, true),
                       array(4, true), array(5, true), array(6, true), 1, kH, static_cast<float>(kEps)},
        nullptr);
    cudaDeviceSynchronize();
    for (int i = 0; i < kH; ++i) EXPECT_EQ(residual[i], value(i + 2) + value(i + 3) + value(i + 4));
    if (unaligned < 0) expected.assign(norm, norm + kH);
    for (int i = 0; i < kH; ++i) EXPECT_NEAR(norm[i], expected[i], 1e-6) << i << " " << unaligned;
    for (const int output : {0, 1})
      EXPECT_TRUE(std::isnan(all[output]->values()[output == unaligned ? 0 : kH]));
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::add_norm_test

// The CUDA kernels of a step's end, on the emulator, against fp64: norm, clipping, AdamW.
#include "shardwise/kernels/adamw_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "shardwise/kernels/square_sum_cuda.h"
#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::adamw_test {
namespace {

/// Below, at and above a pack and a chunk. The last tensor is not aligned.
std::vector<int64_t> sizes() {
  if (is_sanitized()) return {1, 0, 9, kChunkElements + 3, 24};
  return {1, 7, 8, 0, 9, 4095, 4096, 4097, 3 * kChunkElements + 5, 0, 64, 500};
}

/// The first chunks of tensors of these sizes, on the device.
struct DeviceChunks {
  explicit DeviceChunks(const std::vector<int64_t>& sizes)
      : host(first_chunks(sizes)), first(host.size(), [this](size_t i) { return host[i]; }) {}
  Chunks get() const { return {first.data(), static_cast<int>(host.size()) - 1, host.back()}; }
  std::vector<int64_t> host;
  DeviceArray<int64_t> first;
};

double sum_of_squares(const std::vector<int64_t>& sizes, double factor) {
  std::vector<std::unique_ptr<Values<float>>> values;
  DeviceArray<SummedTensor> tensors(sizes.size());
  long double expected = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t offset = i + 1 == sizes.size() ? 1 : 0;
    values.push_back(std::make_unique<Values<float>>(sizes[i] + offset, 100 + i, 0));
    for (int64_t at = 0; at < sizes[i]; ++at) {
      float& value = values[i]->device.data()[offset + at];
      value = static_cast<float>(value * factor);
      expected += static_cast<long double>(value) * value;
    }
    tensors.data()[i] = {values[i]->device.data() + offset, sizes[i]};
  }
  const DeviceChunks chunks(sizes);
  const DeviceArray<double> sum(1), partial(chunks.host.back() + 1);
  square_sum({sum.data(), partial.data(), tensors.data(), chunks.get()}, nullptr);
  cudaDeviceSynchronize();
  EXPECT_NEAR(sum.values()[0], static_cast<double>(expected), 40 * 0x1p-53 * static_cast<double>(expected));
  return sum.values()[0];
}

TEST(CudaSquareSum, IsFp64InEveryOrder) {
  double first = 0;
  in_every_order([&] {
    const double sum = sum_of_squares(sizes(), 1);
    if (first == 0) first = sum;
    EXPECT_EQ(sum, first);
  });
}

/// Squares that fp32 cannot hold.
TEST(CudaSquareSum, DoesNotOverflow) {
  EXPECT_GT(sum_of_squares({1000, 8}, 1e30), 1e60);
}

TEST(CudaSquareSum, OfNothingIsZero) {
  EXPECT_EQ(sum_of_squares({0, 0}, 1), 0);
}

float scale_of(double sum, double max_norm, double loss = 2) {
  const DeviceArray<double> sums(1, [&](size_t) { return sum; }), losses(1, [&](size_t) { return loss; });
  const DeviceArray<float> scale(1);
  clip_scale(scale.data(), sums.data(), losses.data(), max_norm, nullptr);
  cudaDeviceSynchronize();
  return scale.values()[0];
}

TEST(CudaClipScale, ClipsOnlyLargerNorms) {
  EXPECT_FLOAT_EQ(scale_of(16.0, 1.0), static_cast<float>(1.0 / (4.0 + 1e-6)));
  EXPECT_EQ(scale_of(0.25, 1.0), 1.0f);
  EXPECT_EQ(scale_of(16.0, 0.0), 1.0f);  // no clipping
  EXPECT_EQ(scale_of(0.0, 1.0), 1.0f);
}

TEST(CudaClipScale, IsNanIfTheStepIsNotFinite) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  for (const double max_norm : {0.0, 1.0}) {
    for (const double bad : {kNan, kInfinity, -kInfinity}) {
      EXPECT_TRUE(std::isnan(scale_of(bad, max_norm))) << bad;
      EXPECT_TRUE(std::isnan(scale_of(1.0, max_norm, bad))) << bad;
    }
    EXPECT_EQ(scale_of(1e-8, max_norm, -1e300), 1.0f);
  }
}

/// One tensor before the step, and where the step writes. Each array begins `offset` elements after an
/// aligned address.
template <class T>
struct Tensor {
  Tensor(int64_t n, unsigned seed, int64_t offset)
      : n(n),
        offset(offset),
        weights(n + offset, seed, 0),
        gradient(n + offset, seed + 1, 0),
        exp_avg(n + offset, seed + 2, 0),
        exp_avg_sq(n + offset, seed + 3, 0),
        rounded(n + offset) {
    for (int64_t i = 0; i < n + offset; ++i) {
      exp_avg_sq.wide[i] = std::abs(exp_avg_sq.wide[i]);
      exp_avg_sq.device.data()[i] = std::abs(exp_avg_sq.device.data()[i]);
    }
  }
  AdamWTensor<T> on_device(float decay) const {
    return {weights.device.data() + offset,
            gradient.device.data() + offset,
            exp_avg.device.data() + offset,
            exp_avg_sq.device.data() + offset,
            std::is_same_v<T, float> ? nullptr : rounded.data() + offset,
            n,
            decay};
  }
  int64_t n, offset;
  Values<float> weights, gradient, exp_avg, exp_avg_sq;
  DeviceArray<T> rounded;
};

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kRate = 0.01, kScale = 0.25;
constexpr int kStep = 3;

/// Of the tensor before the step; three roundings of each term, and of the factors.
template <class T>
void expect_step(const Tensor<T>& x, float decay, bool zeroes) {
  for (int64_t i = x.offset; i < x.n + x.offset; ++i) {
    const double g = x.gradient.wide[i] * kScale, m0 = x.exp_avg.wide[i], v0 = x.exp_avg_sq.wide[i];
    const double m = kBeta1 * m0 + (1 - kBeta1) * g, v = kBeta2 * v0 + (1 - kBeta2) * g * g;
    const double m_hat = m / (1 - std::pow(kBeta1, kStep)), v_hat = v / (1 - std::pow(kBeta2, kStep));
    const double root = std::sqrt(v_hat) + kEps, change = kRate * m_hat / root;
    const double weight = static_cast<double>(decay) * x.weights.wide[i] - change;
    const double of_m = 4 * kUnit * (std::abs(m0) + std::abs(g));
    ASSERT_NEAR(x.exp_avg.device.values()[i], m, of_m) << i;
    ASSERT_NEAR(x.exp_avg_sq.device.values()[i], v, 6 * kUnit * v) << i;
    const double error = 2 * kUnit * std::abs(x.weights.wide[i]) +
                         kRate / (1 - std::pow(kBeta1, kStep)) * of_m / root + 12 * kUnit * std::abs(change);
    const float updated = x.weights.device.values()[i];
    ASSERT_NEAR(updated, weight, error) << i << " of " << x.n;
    if constexpr (!std::is_same_v<T, float>) {
      ASSERT_EQ(static_cast<float>(x.rounded.values()[i]), static_cast<float>(static_cast<T>(updated))) << i;
    }
    ASSERT_EQ(x.gradient.device.values()[i], zeroes ? 0.0f : static_cast<float>(x.gradient.wide[i])) << i;
  }
  for (int64_t i = 0; i < x.offset; ++i)
    ASSERT_EQ(x.weights.device.values()[i], static_cast<float>(x.weights.wide[i])) << "before the tensor";
}

template <class T>
void check_step(bool zeroes) {
  const std::vector<int64_t> of = sizes();
  std::vector<std::unique_ptr<Tensor<T>>> tensors;
  DeviceArray<AdamWTensor<T>> on_device(of.size());
  const auto decay = [](size_t i) { return i % 2 == 0 ? 0.999f : 1.0f; };
  for (size_t i = 0; i < of.size(); ++i) {
    tensors.push_back(std::make_unique<Tensor<T>>(of[i], 10 * i, i + 1 == of.size() ? 1 : 0));
    on_device.data()[i] = tensors[i]->on_device(decay(i));
  }
  const DeviceChunks chunks(of);
  const DeviceArray<float> scale(1, [](size_t) { return static_cast<float>(kScale); });
  adamw(AdamW<T>{.tensors = on_device.data(),
                 .chunks = chunks.get(),
                 .gradient_scale = scale.data(),
                 .rate1 = static_cast<float>(1 - kBeta1),
                 .rate2 = static_cast<float>(1 - kBeta2),
                 .beta2 = static_cast<float>(kBeta2),
                 .step_size = static_cast<float>(kRate / (1 - std::pow(kBeta1, kStep))),
                 .inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, kStep))),
                 .eps = static_cast<float>(kEps),
                 .zeroes_gradient = zeroes},
        nullptr);
  cudaDeviceSynchronize();
  for (size_t i = 0; i < of.size(); ++i) expect_step(*tensors[i], decay(i), zeroes);
}

TEST(CudaAdamW, MatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const bool zeroes : {false, true}) {
      check_step<float>(zeroes);
      check_step<__nv_bfloat16>(zeroes);
    }
  });
}

TEST(CudaAdamW, OfNothingDoesNothing) {
  const DeviceChunks chunks({0, 0});
  AdamW<float> nothing{};
  nothing.chunks = chunks.get();
  adamw(nothing, nullptr);
  cudaDeviceSynchronize();
}

}  // namespace
}  // namespace shardwise::kernels::cuda::adamw_test

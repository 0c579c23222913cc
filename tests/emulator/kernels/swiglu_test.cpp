// SwiGLU's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/swiglu_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::swiglu_test {
namespace {

struct Shape {
  int64_t rows;
  int f;
};

double sigmoid_of(double g) {
  return 1 / (1 + std::exp(-g));
}

/// Of the kernels' sigmoid: that of expf, of 1 + expf and of its reciprocal.
constexpr double kSigmoidUnits = kExpUnits + 2;

template <class T>
void check_forward(const Shape& shape) {
  const auto [rows, f] = shape;
  const Values<T> gate_up(rows * 2 * f, 1, 0);
  const DeviceArray<T> y(rows * f + 1);
  swiglu(Swiglu<T>{y.data(), gate_up.device.data(), rows, f}, nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < rows; ++row) {
    const double *gate = &gate_up.wide[row * 2 * f], *up = gate + f;
    for (int i = 0; i < f; ++i) {
      const double value = gate[i] * sigmoid_of(gate[i]) * up[i];
      ASSERT_NEAR(static_cast<float>(y.values()[row * f + i]), value,
                  (kUnitOf<T> + (kSigmoidUnits + 2) * kUnit) * std::abs(value) + kTinyOf<T>)
          << row << " " << i << " of " << f;
    }
  }
  EXPECT_EQ(count_nan(y.values()), 1u);
}

/// A product of three factors has an error of two roundings and the sigmoid's. In 1 + g (1 − s) the terms may
/// cancel: the sigmoid's error reaches it times g.
template <class T>
void check_backward(const Shape& shape) {
  const auto [rows, f] = shape;
  const Values<T> gate_up(rows * 2 * f, 1, 0), dy(rows * f, 2, 0);
  const DeviceArray<T> d_gate_up(rows * 2 * f + 1);
  swiglu_backward(SwigluBackward<T>{d_gate_up.data(), dy.device.data(), gate_up.device.data(), rows, f},
                  nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < rows; ++row) {
    const double *gate = &gate_up.wide[row * 2 * f], *up = gate + f, *of_y = &dy.wide[row * f];
    const T* const d_gate = &d_gate_up.values()[row * 2 * f];
    for (int i = 0; i < f; ++i) {
      const double g = gate[i], s = sigmoid_of(g), product = of_y[i] * up[i] * s, slope = 1 + g * (1 - s);
      const double slope_error = std::abs(g) * (kSigmoidUnits * s + 1 - s) + std::abs(slope);
      const double error = std::abs(product) * ((kSigmoidUnits + 3) * std::abs(slope) + slope_error) * kUnit;
      ASSERT_NEAR(static_cast<float>(d_gate[i]), product * slope,
                  kUnitOf<T> * std::abs(product * slope) + 1.01 * error + kTinyOf<T>)
          << row << " " << i << " of " << f;
      const double d_up = of_y[i] * g * s;
      ASSERT_NEAR(static_cast<float>(d_gate[f + i]), d_up,
                  (kUnitOf<T> + (kSigmoidUnits + 2) * kUnit) * std::abs(d_up) + kTinyOf<T>)
          << row << " " << i << " of " << f;
    }
  }
  EXPECT_EQ(count_nan(d_gate_up.values()), 1u);
}

/// Widths of whole packs and of one element more, at the limits of one, two and more blocks a row.
std::vector<Shape> shapes() {
  if (is_sanitized()) return {{0, 8}, {3, 1}, {3, 8}, {2, 100}, {1, 1032}};
  return {{0, 8},    {3, 1},    {3, 2},    {5, 7},    {17, 8},   {3, 64},   {3, 65},  {2, 1000},
          {1, 1024}, {2, 1028}, {1, 2048}, {2, 2056}, {1, 2057}, {2, 4096}, {1, 4104}};
}

TEST(CudaSwiglu, ForwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check_forward<float>(shape);
      check_forward<__nv_bfloat16>(shape);
      check_forward<__half>(shape);
    }
  });
}

TEST(CudaSwiglu, BackwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check_backward<float>(shape);
      check_backward<__nv_bfloat16>(shape);
    }
  });
}

/// Rows that are not aligned to 16 bytes have the bits of those that are.
TEST(CudaSwiglu, UnalignedRowsHaveTheSameBits) {
  constexpr int kF = 64;
  const Values<float> dy(kF, 2, 0), gate_up(2 * kF, 1, 0);
  const auto moved = [](const Values<float>& x) {
    return DeviceArray<float>(x.wide.size() + 1,
                              [&x](size_t i) { return i == 0 ? 0 : x.device.data()[i - 1]; });
  };
  const DeviceArray<float> dy_moved = moved(dy), gate_up_moved = moved(gate_up);
  const DeviceArray<float> y(kF), y_moved(kF + 1), d_gate_up(2 * kF), d_gate_up_moved(2 * kF + 1);
  swiglu(Swiglu<float>{y.data(), gate_up.device.data(), 1, kF}, nullptr);
  swiglu(Swiglu<float>{y_moved.data() + 1, gate_up_moved.data() + 1, 1, kF}, nullptr);
  swiglu_backward(SwigluBackward<float>{d_gate_up.data(), dy.device.data(), gate_up.device.data(), 1, kF},
                  nullptr);
  swiglu_backward(
      SwigluBackward<float>{d_gate_up_moved.data() + 1, dy_moved.data() + 1, gate_up_moved.data() + 1, 1, kF},
      nullptr);
  cudaDeviceSynchronize();
  for (int i = 0; i < kF; ++i) EXPECT_EQ(y.values()[i], y_moved.values()[1 + i]) << i;
  for (int i = 0; i < 2 * kF; ++i) EXPECT_EQ(d_gate_up.values()[i], d_gate_up_moved.values()[1 + i]) << i;
  EXPECT_TRUE(std::isnan(y_moved.values()[0]) && std::isnan(d_gate_up_moved.values()[0]));
}

/// Where exp overflows, and where the sigmoid is 1.
TEST(CudaSwiglu, LargeGatesAreFinite) {
  const std::vector<float> gates = {-1000, -100, -88, 0, 88, 100, 1000, 1e30f};
  const int f = static_cast<int>(gates.size());
  const DeviceArray<float> gate_up(2 * f, [&](size_t i) { return i < gates.size() ? gates[i] : 2.0f; });
  const DeviceArray<float> dy(f, [](size_t) { return 3.0f; }), y(f), d_gate_up(2 * f);
  swiglu(Swiglu<float>{y.data(), gate_up.data(), 1, f}, nullptr);
  swiglu_backward(SwigluBackward<float>{d_gate_up.data(), dy.data(), gate_up.data(), 1, f}, nullptr);
  cudaDeviceSynchronize();
  for (int i = 0; i < f; ++i) {
    const float g = gates[i];
    const double s = sigmoid_of(g);
    EXPECT_NEAR(y.values()[i], 2 * g * s, 1e-6 * std::abs(2 * g * s) + 1e-35) << g;
    EXPECT_NEAR(d_gate_up.values()[i], 6 * s * (1 + g * (1 - s)), 1e-5) << g;
    EXPECT_NEAR(d_gate_up.values()[f + i], 3 * g * s, 1e-6 * std::abs(3 * g * s) + 1e-35) << g;
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::swiglu_test

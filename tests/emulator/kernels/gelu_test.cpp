// GeLU's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/gelu_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::gelu_test {
namespace {

struct Shape {
  int64_t rows;
  int f;
};

/// Φ and its derivative, and the errors of the kernels' in units of kUnit.
struct Phi {
  double value, slope, value_error, slope_error;
};

/// Roundings of Φ(−|z|): of the fit 2, of the polynomial 5, of t 5, which the polynomial takes up to 2.8
/// times, and 3 products.
Phi erf_phi(double z) {
  const double density = std::exp(-z * z / 2), tail = std::erfc(std::abs(z) / std::sqrt(2.0)) / 2;
  const double density_error = fast_exp_units(z * z / 2) + z * z / 2;
  const double value = z < 0 ? tail : 1 - tail;
  return {value, density / std::sqrt(2 * std::acos(-1.0)),
          tail * (density_error + 2 + 5 + 3.8 * 5 + 3) + (z < 0 ? 0 : value),
          density / std::sqrt(2 * std::acos(-1.0)) * (density_error + 2)};
}

/// The exponent w has 6 roundings, constants included. The slope's factor 1 − value is that of a rounded
/// value.
Phi tanh_phi(double z) {
  const double scale = 2 * std::sqrt(2 / std::acos(-1.0)), x = std::min(24.0, std::max(-24.0, z));
  const double w = scale * (x + 0.044715 * x * x * x), value = 1 / (1 + std::exp(-w));
  const double rest = 1 / (1 + std::exp(w)), inner = scale * (1 + 3 * 0.044715 * x * x);
  const double value_error = value * (rest * (fast_exp_units(w) + 6 * std::abs(w)) + 1 + kFastDivideUnits);
  return {value, value * rest * inner, value_error,
          inner * (value_error * rest + value * (value_error + rest) + 8 * value * rest)};
}

Phi phi_of(double z, GeluForm form) {
  return form == GeluForm::erf ? erf_phi(z) : tanh_phi(z);
}

/// Inputs, with or without a bias.
template <class T>
struct Inputs {
  Inputs(const Shape& shape, bool has_bias)
      : x(shape.rows * shape.f, 1, 0), bias(shape.f, 2, 0.5), has_bias(has_bias) {}
  const T* bias_or_null() const { return has_bias ? bias.device.data() : nullptr; }
  /// Returns x + bias of an element, which kernels round to fp32.
  double z(int64_t row, int column) const {
    const auto f = static_cast<int64_t>(bias.wide.size());
    const double added = has_bias ? bias.wide[column] : 0;
    return static_cast<float>(x.wide[row * f + column] + added);
  }
  Values<T> x, bias;
  bool has_bias;
};

template <class T>
void check_forward(const Shape& shape, GeluForm form, bool has_bias) {
  const auto [rows, f] = shape;
  const Inputs<T> in(shape, has_bias);
  const DeviceArray<T> y(rows * f + 1);
  gelu(Gelu<T>{y.data(), in.x.device.data(), in.bias_or_null(), rows, f, form}, nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < f; ++i) {
      const double z = in.z(row, i);
      const Phi phi = phi_of(z, form);
      const double error = std::abs(z) * (phi.value_error + phi.value) * kUnit;
      ASSERT_NEAR(static_cast<float>(y.values()[row * f + i]), z * phi.value,
                  kUnitOf<T> * std::abs(z * phi.value) + 1.01 * error + kTinyOf<T>)
          << row << " " << i << " of " << f << " z " << z;
    }
  }
  EXPECT_EQ(count_nan(y.values()), 1u);
}

template <class T>
void check_backward(const Shape& shape, GeluForm form, bool has_bias, int blocks) {
  const auto [rows, f] = shape;
  const Inputs<T> in(shape, has_bias);
  const Values<T> dy(rows * f, 3, 0);
  const DeviceArray<T> dx(rows * f + 1);
  const DeviceArray<float> grad(f, [](size_t) { return 2.0f; }), partial(size_t{1} * blocks * f + 1);
  gelu_backward(GeluBackward<T>{dx.data(), grad.data(), partial.data(), dy.device.data(), in.x.device.data(),
                                in.bias_or_null(), rows, f, blocks, form},
                nullptr);
  cudaDeviceSynchronize();
  for (int i = 0; i < f; ++i) {
    double sum = 2, magnitude = 2, errors = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const double z = in.z(row, i), of_y = dy.wide[row * f + i];
      const Phi phi = phi_of(z, form);
      const double slope = phi.value + z * phi.slope, value = of_y * slope;
      const double error =
          std::abs(of_y) * (phi.value_error + std::abs(z) * phi.slope_error + 2 * std::abs(slope)) * kUnit;
      ASSERT_NEAR(static_cast<float>(dx.values()[row * f + i]), value,
                  kUnitOf<T> * std::abs(value) + 1.01 * error + kTinyOf<T>)
          << row << " " << i << " of " << f << " z " << z;
      sum += value, magnitude += std::abs(value), errors += error;
    }
    const double roundings = static_cast<double>(rows) / blocks + blocks + 2;
    ASSERT_NEAR(grad.values()[i], sum, 1.01 * errors + roundings * kUnit * magnitude) << i << " of " << f;
  }
  EXPECT_EQ(count_nan(dx.values()), 1u);
  EXPECT_TRUE(std::isnan(partial.values().back()));
}

/// Widths of whole packs and of one element more, at the limits of one, two and more blocks a row.
std::vector<Shape> shapes() {
  if (is_sanitized()) return {{0, 8}, {3, 1}, {5, 8}, {2, 100}, {1, 1032}};
  return {{0, 8},    {3, 1},    {3, 2},    {5, 7},    {17, 64}, {3, 65},
          {2, 1000}, {1, 1024}, {2, 1028}, {2, 2056}, {1, 2057}};
}

template <class Check>
void for_cases(const Check& check) {
  in_every_order([&] {
    for (const Shape& shape : shapes())
      for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) check(shape, form);
  });
}

TEST(CudaGelu, ForwardMatchesFp64InEveryOrder) {
  for_cases([](const Shape& shape, GeluForm form) {
    check_forward<float>(shape, form, /*has_bias=*/true);
    check_forward<__nv_bfloat16>(shape, form, /*has_bias=*/true);
    check_forward<__half>(shape, form, /*has_bias=*/false);
  });
}

TEST(CudaGelu, BackwardMatchesFp64InEveryOrder) {
  for_cases([](const Shape& shape, GeluForm form) {
    check_backward<float>(shape, form, /*has_bias=*/true, /*blocks=*/1);
    check_backward<float>(shape, form, /*has_bias=*/false, /*blocks=*/3);
    check_backward<__nv_bfloat16>(shape, form, /*has_bias=*/true, /*blocks=*/2);
  });
}

TEST(CudaGelu, WithoutABiasGradientNothingIsSummed) {
  constexpr int kF = 64;
  const Values<float> x(kF, 1, 0);
  const DeviceArray<float> dx(kF);
  gelu_backward(GeluBackward<float>{dx.data(), nullptr, nullptr, x.device.data(), x.device.data(), nullptr, 1,
                                    kF, 4, GeluForm::erf},
                nullptr);
  cudaDeviceSynchronize();
  EXPECT_EQ(count_nan(dx.values()), 0u);
}

/// Rows that are not aligned to 16 bytes have the bits of those that are. Each pointer is moved alone.
TEST(CudaGelu, UnalignedRowsHaveTheSameBits) {
  constexpr int kF = 64;
  const Values<float> values(kF, 1, 0);
  const auto moved = [&](size_t by) {
    return std::make_unique<DeviceArray<float>>(
        kF + 1, [&](size_t i) { return i < by || i - by >= kF ? 0 : values.device.data()[i - by]; });
  };
  const DeviceArray<float> expected(kF);
  gelu(Gelu<float>{expected.data(), values.device.data(), values.device.data(), 1, kF, GeluForm::tanh},
       nullptr);
  for (int which = 0; which < 3; ++which) {
    const DeviceArray<float> y(kF + 1);
    const auto x = moved(which == 1), bias = moved(which == 2);
    gelu(Gelu<float>{y.data() + (which == 0), x->data() + (which == 1), bias->data() + (which == 2), 1, kF,
                     GeluForm::tanh},
         nullptr);
    cudaDeviceSynchronize();
    for (int i = 0; i < kF; ++i)
      EXPECT_EQ(y.values()[i + (which == 0)], expected.values()[i]) << which << " " << i;
    EXPECT_EQ(count_nan(y.values()), 1u);
  }
}

/// Where z³, exp or the reciprocal overflow.
TEST(CudaGelu, LargeInputsAreFinite) {
  const std::vector<float> inputs = {-1e30f, -100, -25, -13.5f, -9.2f, -8, 0, 8, 25, 100, 1e30f, 3};
  const int f = static_cast<int>(inputs.size());
  const DeviceArray<float> x(f, [&](size_t i) { return inputs[i]; }), dy(f, [](size_t) { return 1.0f; });
  for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
    const DeviceArray<float> y(f), dx(f);
    gelu(Gelu<float>{y.data(), x.data(), nullptr, 1, f, form}, nullptr);
    gelu_backward(
        GeluBackward<float>{dx.data(), nullptr, nullptr, dy.data(), x.data(), nullptr, 1, f, 1, form},
        nullptr);
    cudaDeviceSynchronize();
    for (int i = 0; i < f; ++i) {
      const Phi phi = phi_of(inputs[i], form);
      EXPECT_NEAR(y.values()[i], inputs[i] * phi.value, 1e-6 * std::abs(inputs[i] * phi.value) + 1e-9);
      EXPECT_NEAR(dx.values()[i], phi.value + inputs[i] * phi.slope, 1e-6) << inputs[i];
    }
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::gelu_test

// Normalized rows in fp64, for the tests of the norms' kernels.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda {

inline constexpr double kEps = 1e-5;

struct NormShape {
  int64_t rows;
  int h;
};

/// Widths of whole packs and of one element more, at the limits of one, two and four packs a thread;
/// sanitizers take 50 times as long.
inline std::vector<NormShape> norm_shapes() {
  if (is_sanitized()) return {{3, 1}, {3, 8}, {2, 100}, {2, 520}};
  return {{0, 8},    {1, 1},    {3, 2},    {5, 7},    {2, 8},    {17, 64},  {3, 65},    {2, 256},  {1, 1000},
          {1, 2048}, {2, 2056}, {1, 4096}, {2, 5001}, {1, 8192}, {1, 8200}, {1, 16384}, {1, 16392}};
}

struct Moments {
  double mean = 0, rstd, size = 0;  // size: the mean of |x|, if there is a mean
};
inline Moments moments_of(const double* x, int h, bool has_mean) {
  Moments m;
  for (int i = 0; i < h && has_mean; ++i) {
    m.mean += x[i] / h;
    m.size += std::abs(x[i]) / h;
  }
  double squares = 0;
  for (int i = 0; i < h; ++i) squares += (x[i] - m.mean) * (x[i] - m.mean);
  m.rstd = 1 / std::sqrt(squares / h + kEps);
  return m;
}

/// What a kernel has written, and the inputs in fp64. LayerNorm has `mean` and `bias`.
template <class T>
struct Normalized {
  std::span<const T> y;
  std::span<const float> rstd, mean;
  const std::vector<double>&x, &weight;
  const std::vector<double>* bias;
};

/// An error of the kernel's mean moves all of a row's x − mean.
template <class T>
void expect_normalized(const Normalized<T>& n, const NormShape& shape) {
  const int h = shape.h;
  const double error = roundings(h) * kUnit;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const Moments m = moments_of(&n.x[row * h], h, n.bias != nullptr);
    const double of_mean = error * m.size, of_rstd = error + m.rstd * m.rstd * of_mean * of_mean;
    if (n.bias != nullptr) {
      ASSERT_NEAR(n.mean[row], m.mean, of_mean) << row << " of " << h;
    }
    ASSERT_NEAR(n.rstd[row], m.rstd, of_rstd * m.rstd) << row << " of " << h;
    for (int i = 0; i < h; ++i) {
      const double scaled = (n.x[row * h + i] - m.mean) * m.rstd * n.weight[i];
      const double bias = n.bias != nullptr ? (*n.bias)[i] : 0;
      ASSERT_NEAR(static_cast<float>(n.y[row * h + i]), scaled + bias,
                  (of_rstd + 4 * kUnit) * std::abs(scaled) + of_mean * m.rstd * std::abs(n.weight[i]) +
                      kUnit * std::abs(bias) + rounding_to<T>(scaled + bias))
          << row << " " << i << " of " << h;
    }
  }
}

}  // namespace shardwise::kernels::cuda

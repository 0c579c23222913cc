// What products of rows give where one input is not finite.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <span>

namespace shardwise::kernels::cuda {

/// Expects products of k ones, [m, n], but Inf in the last row, and NaN in the last column.
inline void expect_not_finite_in_last(std::span<const float> y, int64_t m, int n, int k) {
  for (int64_t i = 0; i < m * n; ++i) {
    if (i % n == n - 1) {
      EXPECT_TRUE(std::isnan(y[i])) << i << " of " << m;
    } else {
      EXPECT_EQ(y[i], i / n == m - 1 ? INFINITY : static_cast<float>(k)) << i << " of " << m;
    }
  }
}

}  // namespace shardwise::kernels::cuda

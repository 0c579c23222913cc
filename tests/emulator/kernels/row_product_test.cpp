// The CUDA kernels of a few rows' products, on the emulator, against fp64.
#include "shardwise/kernels/row_product_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/emulator/kernels/not_finite.h"
#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::row_product_test {
namespace {

struct Shape {
  int64_t m;
  int n, k;
};

/// The roundings that a product of a sum goes through (row_product_cuda.h).
template <class T>
double roundings_of(int k) {
  constexpr int kPack = 16 / sizeof(T);
  const int packs = (k + kPack - 1) / kPack, lanes = packs >= 4 * 128 ? 128 : 32;
  return (packs + lanes - 1) / lanes * kPack + 9;
}

template <class T>
void check(const Shape& shape) {
  const auto [m, n, k] = shape;
  const Values<T> x(m * k, 1, 0), w(size_t{1} * n * k, 2, 0);
  const DeviceArray<T> y(m * n + 1);
  row_product(RowProduct<T>{y.data(), x.data(), w.data(), m, n, k}, nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < m; ++row)
    for (int o = 0; o < n; ++o) {
      double sum = 0, size = 0;
      for (int i = 0; i < k; ++i) {
        const double product = x.wide[row * k + i] * w.wide[int64_t{o} * k + i];
        sum += product;
        size += std::abs(product);
      }
      const double error = roundings_of<T>(k) * kUnit * size;
      ASSERT_NEAR(static_cast<float>(y.values()[row * n + o]), sum,
                  error + rounding_to<T>(std::abs(sum) + error))
          << row << " " << o << " of " << m << " " << n << " " << k;
    }
  EXPECT_EQ(count_nan(y.values()), 1u);
}

/// Rows and outputs around those of a block, and columns around a pack, what a thread loads at a time, and
/// the least that a block shares.
std::vector<Shape> shapes() {
  if (is_sanitized())
    return {{0, 3, 8}, {3, 0, 8}, {2, 3, 0}, {1, 9, 8}, {3, 5, 1032}, {9, 2, 33}, {2, 3, 4096}, {5, 1, 4099}};
  return {{0, 3, 8},    {3, 0, 8},    {2, 3, 0},    {1, 1, 1},    {1, 2, 7},     {1, 9, 8},    {2, 8, 9},
          {3, 17, 16},  {4, 16, 248}, {5, 15, 256}, {6, 5, 257},  {7, 7, 264},   {8, 17, 512}, {9, 33, 520},
          {16, 4, 768}, {17, 3, 40},  {1, 5, 1016}, {2, 3, 1024}, {3, 5, 1032},  {8, 2, 1536}, {1, 5, 2040},
          {4, 5, 2048}, {1, 3, 2056}, {1, 3, 2049}, {1, 5, 4088}, {2, 3, 4096},  {5, 5, 4104}, {8, 3, 4100},
          {9, 1, 4095}, {1, 3, 8192}, {1, 2, 8200}, {3, 2, 8201}, {1, 1, 12288}, {4, 1, 6144}};
}

TEST(CudaRowProduct, MatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check<float>(shape);
      check<__nv_bfloat16>(shape);
      check<__half>(shape);
    }
  });
}

/// A product of rows `rows` and outputs `outputs` of others.
struct Part {
  int64_t rows[2];
  int outputs[2];
};

/// Expects that the parts of a product have the bits of the whole.
template <class T>
void expect_equal_parts(const Shape& shape, const std::vector<Part>& parts) {
  const auto [m, n, k] = shape;
  const Values<T> x(m * k, 1, 0), w(size_t{1} * n * k, 2, 0);
  const DeviceArray<T> y(m * n);
  row_product(RowProduct<T>{y.data(), x.data(), w.data(), m, n, k}, nullptr);
  for (const auto& [rows, outputs] : parts) {
    const int64_t count = rows[1] - rows[0];
    const int width = outputs[1] - outputs[0];
    const DeviceArray<T> part(count * width);
    row_product(RowProduct<T>{part.data(), x.data() + rows[0] * k, w.data() + int64_t{outputs[0]} * k, count,
                              width, k},
                nullptr);
    cudaDeviceSynchronize();
    for (int64_t row = 0; row < count; ++row)
      for (int o = 0; o < width; ++o)
        EXPECT_TRUE(
            same_bits(part.values()[row * width + o], y.values()[(rows[0] + row) * n + outputs[0] + o]))
            << "row " << rows[0] + row << " of " << count << ", output " << outputs[0] + o << ", k " << k;
  }
}

/// A row has the same bits alone and in each size of a batch.
TEST(CudaRowProduct, BitsDoNotDependOnOtherRows) {
  std::vector<Part> parts;
  for (int64_t row = 0; row < 11; ++row) parts.push_back({{row, row + 1}, {0, 5}});
  for (int64_t rows = 2; rows <= 10; ++rows) parts.push_back({{11 - rows, 11}, {0, 5}});
  for (const int k : {8, 1040, 4112, 37}) {
    if (is_sanitized() && k == 4112) continue;
    expect_equal_parts<float>({11, 5, k}, parts);
    expect_equal_parts<__nv_bfloat16>({11, 5, k}, parts);
  }
}

/// An output has the same bits in each shard of the weight's rows.
TEST(CudaRowProduct, BitsDoNotDependOnOtherOutputs) {
  for (const int64_t m : {1, 3, 8})
    for (const int k : {264, 2112, 41})
      expect_equal_parts<float>({m, 23, k}, {{{0, m}, {0, 1}}, {{0, m}, {1, 8}}, {{0, m}, {8, 23}}});
}

/// Operands that are not aligned to 16 bytes have the bits of those that are.
template <class T>
void expect_equal_unaligned(const Shape& shape) {
  const auto [m, n, k] = shape;
  const Values<T> x(m * k, 1, 0), w(size_t{1} * n * k, 2, 0);
  const auto moved = [](const Values<T>& values) {
    return DeviceArray<T>(values.wide.size() + 1, [&values](size_t i) {
      return i == 0 ? static_cast<T>(std::numeric_limits<float>::quiet_NaN()) : values.data()[i - 1];
    });
  };
  const DeviceArray<T> x_moved = moved(x), w_moved = moved(w), y(m * n);
  row_product(RowProduct<T>{y.data(), x.data(), w.data(), m, n, k}, nullptr);
  for (const bool moves_x : {false, true}) {
    const DeviceArray<T> y_moved(m * n + 1);
    row_product(RowProduct<T>{y_moved.data() + 1, moves_x ? x_moved.data() + 1 : x.data(),
                              moves_x ? w.data() : w_moved.data() + 1, m, n, k},
                nullptr);
    cudaDeviceSynchronize();
    for (int64_t i = 0; i < m * n; ++i)
      EXPECT_TRUE(same_bits(y.values()[i], y_moved.values()[i + 1])) << i << " " << k << " " << moves_x;
    EXPECT_EQ(count_nan(y_moved.values()), 1u);
  }
}

TEST(CudaRowProduct, UnalignedOperandsHaveTheSameBits) {
  for (const Shape& shape : {Shape{1, 5, 2056}, {3, 3, 1304}, {8, 2, 4104}, {9, 3, 64}}) {
    if (is_sanitized() && shape.k > 4000) continue;
    expect_equal_unaligned<float>(shape);
    expect_equal_unaligned<__nv_bfloat16>(shape);
    expect_equal_unaligned<__half>(shape);
  }
}

/// NaNs and infinities stay in their row and their output.
TEST(CudaRowProduct, NotFiniteNumbersStayWhereTheyAre) {
  constexpr int kN = 7;
  for (const int k : {72, 75})
    for (const int64_t m : {1, 2, 3, 7, 11}) {
      const DeviceArray<float> x(m * k, [&](size_t i) { return i == size_t(m * k - 1) ? INFINITY : 1.0f; });
      const DeviceArray<float> w(size_t{kN} * k, [&](size_t i) {
        return i == size_t(kN * k - k) ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
      });
      const DeviceArray<float> y(m * kN);
      row_product(RowProduct<float>{y.data(), x.data(), w.data(), m, kN, k}, nullptr);
      cudaDeviceSynchronize();
      expect_not_finite_in_last(y.values(), m, kN, k);
    }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::row_product_test

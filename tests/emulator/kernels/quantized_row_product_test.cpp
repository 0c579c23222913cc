// The CUDA kernels of a few rows' products with quantized weights, on the emulator, against fp64.
#include "shardwise/kernels/quantized_row_product_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "tests/emulator/kernels/not_finite.h"
#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::quantized_row_product_test {
namespace {

enum class Groups { in_order, by_column };
enum class Zeros { symmetric, stored };

/// A shard of a weight: the columns [begin, begin + k) of a row.
struct Shape {
  int64_t m;
  int n, k, bits, group_size, begin = 0;
  Groups grouping = Groups::in_order;
  Zeros zeros = Zeros::symmetric;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.m << " " << s.n << " " << s.k << ", int" << s.bits << " g" << s.group_size << " from "
             << s.begin << (s.grouping == Groups::by_column ? " by column" : "")
             << (s.zeros == Zeros::stored ? " with zero points" : "");
}

int blocks_of(int begin, int end, int size) {
  return (end + size - 1) / size - begin / size;
}

/// Random values in all words, those of other ranks too; scales are fp16 numbers.
struct Weight {
  explicit Weight(const Shape& s)
      : shape(s),
        words(blocks_of(s.begin, s.begin + s.k, 32 / s.bits)),
        groups(s.grouping == Groups::by_column ? blocks_of(0, s.begin + s.k, s.group_size)
                                               : blocks_of(s.begin, s.begin + s.k, s.group_size)),
        random(7),
        qweight(size_t(s.n) * words, [this](size_t) { return static_cast<uint32_t>(random()); }),
        scales(size_t(s.n) * groups, [this](size_t) { return random_scale(); }),
        zero_points(size_t(s.n) * groups,
                    [this](size_t) {
                      return static_cast<uint8_t>(shape.zeros == Zeros::stored ? random() % (1u << shape.bits)
                                                                               : 1u << (shape.bits - 1));
                    }),
        group_index(s.k, [this](size_t) { return static_cast<int32_t>(random() % unsigned(groups)); }) {}

  float random_scale() {
    const float scale = std::normal_distribution<float>()(random) / 64;
    return __half2float(__float2half(scale));
  }

  QuantizedWeight on_device() const {
    return {qweight.data(),
            scales.data(),
            shape.zeros == Zeros::stored ? zero_points.data() : nullptr,
            shape.grouping == Groups::by_column ? group_index.data() : nullptr,
            shape.n,
            shape.k,
            shape.bits,
            words,
            groups,
            shape.begin % (32 / shape.bits),
            shape.begin % shape.group_size,
            shape.group_size};
  }

  int group_of(int column) const {
    return shape.grouping == Groups::by_column
               ? group_index.values()[column]
               : (shape.begin + column) / shape.group_size - shape.begin / shape.group_size;
  }
  double at(int output, int column) const {
    const int per_word = 32 / shape.bits, group = group_of(column);
    const int in_row = shape.begin + column, word = in_row / per_word - shape.begin / per_word;
    const unsigned value =
        qweight.values()[size_t(output) * words + word] >> (in_row % per_word * shape.bits) &
        ((1u << shape.bits) - 1);
    const size_t place = size_t(output) * groups + group;
    return (double(value) - double(zero_points.values()[place])) * double(scales.values()[place]);
  }

  /// The roundings that a product of a sum goes through (quantized_row_product_cuda.h).
  int roundings() const {
    const int values = 128 / shape.bits, packs = (shape.k + values - 1) / values;
    const int lanes = packs >= 2 * 128 ? 128 : 32;
    std::vector<int> sums(lanes, 0);
    for (int column = 0; column < shape.k; ++column)
      sums[column / values % lanes] +=
          column % values == 0 || group_of(column) != group_of(column - 1) ? 1 : 0;
    return values + *std::max_element(sums.begin(), sums.end()) + 9;
  }

  Shape shape;
  int words, groups;
  std::mt19937 random;
  DeviceArray<uint32_t> qweight;
  DeviceArray<float> scales;
  DeviceArray<uint8_t> zero_points;
  DeviceArray<int32_t> group_index;
};

template <class T>
void check(const Shape& shape) {
  const auto m = shape.m;
  const int n = shape.n, k = shape.k;
  const Values<T> x(m * k, 1, 0);
  const Weight w(shape);
  const DeviceArray<T> y(m * n + 1);
  quantized_row_product(QuantizedRowProduct<T>{y.data(), x.data(), w.on_device(), m}, nullptr);
  cudaDeviceSynchronize();
  const int roundings = w.roundings();
  for (int o = 0; o < n; ++o) {
    std::vector<double> values(k);
    for (int i = 0; i < k; ++i) values[i] = w.at(o, i);
    for (int64_t row = 0; row < m; ++row) {
      double sum = 0, size = 0;
      for (int i = 0; i < k; ++i) {
        sum += x.wide[row * k + i] * values[i];
        size += std::abs(x.wide[row * k + i] * values[i]);
      }
      const double error = roundings * kUnit * size;
      ASSERT_NEAR(static_cast<float>(y.values()[row * n + o]), sum,
                  error + rounding_to<T>(std::abs(sum) + error))
          << "row " << row << " output " << o << " of " << shape;
    }
  }
  EXPECT_EQ(count_nan(y.values()), 1u) << shape;
}

/// Rows and outputs around those of a block; columns around a pack, what a thread loads at a time, and the
/// least that a block shares; groups that packs fit, and shards that begin within a word or a group.
std::vector<Shape> shapes() {
  struct Size {
    int64_t m;
    int n, k;
  };
  using enum Groups;
  using enum Zeros;
  std::vector<Shape> sizes = {{0, 3, 32, 4, 32},
                              {3, 0, 32, 4, 32},
                              {2, 3, 0, 4, 32},
                              {1, 5, 64, 4, 32},
                              {3, 3, 1056, 4, 128},
                              {9, 2, 45, 8, 16, 5},
                              {2, 3, 96, 8, 48, 48},
                              {8, 3, 544, 8, 32},
                              {1, 1, 8192, 4, 64},
                              {2, 2, 70, 4, 8, 3, by_column, stored},
                              {5, 2, 64, 4, 32, 0, in_order, stored}};
  if (is_sanitized()) return sizes;
  for (const int bits : {4, 8}) {
    const int pack = 128 / bits, least = 256 * pack;
    for (const auto& [m, n, k] : {Size{1, 1, pack},
                                  {1, 9, 2 * pack},
                                  {2, 8, 3 * pack},
                                  {3, 17, 32 * pack},
                                  {4, 5, 33 * pack},
                                  {5, 7, 64 * pack},
                                  {7, 4, 65 * pack},
                                  {8, 9, 128 * pack},
                                  {9, 3, 130 * pack},
                                  {17, 2, pack},
                                  {1, 5, least - pack},
                                  {1, 3, least},
                                  {2, 3, least + pack},
                                  {8, 2, least + 40 * pack},
                                  {1, 2, 2 * least}})
      for (const int group_size : {pack, 4 * pack, k})
        sizes.push_back(
            {m, n, k, bits, group_size, 0, in_order, group_size == 4 * pack ? symmetric : stored});
    const int word = 32 / bits;
    for (const Shape& s : {Shape{1, 3, 1, bits, 32, 0},
                           {2, 5, 33, bits, 32, 0},
                           {3, 2, 100, bits, 20, 7},
                           {8, 3, 64, bits, 64, word},
                           {9, 3, 4 * pack, bits, 2 * pack, pack},
                           {1, 2, 4 * pack, bits, 2 * pack, 4},
                           {1, 3, 8 * pack, bits, 3, 0},
                           {2, 3, least + 1, bits, 128, 60},
                           {1, 2, least, bits, 128, 1}})
      for (const Groups grouping : {in_order, by_column}) {
        Shape cut = s;
        cut.grouping = grouping;
        cut.zeros = s.m % 2 == 0 ? stored : symmetric;
        sizes.push_back(cut);
      }
  }
  return sizes;
}

TEST(CudaQuantizedRowProduct, MatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check<float>(shape);
      check<__nv_bfloat16>(shape);
    }
  });
}

/// Products with rows of the identity are the dequantized values, without an error.
TEST(CudaQuantizedRowProduct, EveryValueIsDequantizedExactly) {
  for (const int bits : {4, 8})
    for (const int more : {0, 1}) {  // columns beyond whole packs
      const int k = 128 / bits + more, n = 40;
      const Weight w({k, n, k, bits, 128 / bits, 0, Groups::in_order, Zeros::stored});
      const DeviceArray<float> x(size_t(k) * k,
                                 [k](size_t i) { return i % size_t(k + 1) == 0 ? 1.0f : 0.0f; });
      const DeviceArray<float> y(size_t(k) * n);
      quantized_row_product(QuantizedRowProduct<float>{y.data(), x.data(), w.on_device(), k}, nullptr);
      cudaDeviceSynchronize();
      for (int i = 0; i < k; ++i)
        for (int o = 0; o < n; ++o) EXPECT_EQ(double(y.values()[i * n + o]), w.at(o, i)) << bits << " " << i;
    }
}

template <class T>
void expect_same(const DeviceArray<T>& y, size_t first, const DeviceArray<T>& whole, size_t first_of_whole,
                 int n) {
  for (int o = 0; o < n; ++o)
    EXPECT_TRUE(same_bits(y.values()[first + o], whole.values()[first_of_whole + o])) << o;
}

/// A row has the same bits alone and in each size of a batch.
TEST(CudaQuantizedRowProduct, BitsDoNotDependOnOtherRows) {
  using enum Groups;
  constexpr int64_t kRows = 11;
  constexpr int kN = 5;
  for (const Shape& shape : {Shape{kRows, kN, 1120, 4, 32},
                             {kRows, kN, 560, 8, 16, 0, in_order, Zeros::stored},
                             {kRows, kN, 8224, 4, 8224},
                             {kRows, kN, 75, 4, 20, 9},
                             {kRows, kN, 60, 8, 20, 0, by_column}}) {
    if (is_sanitized() && shape.k > 8000) continue;
    const Values<float> x(kRows * shape.k, 1, 0);
    const Weight w(shape);
    const DeviceArray<float> y(kRows * kN);
    quantized_row_product(QuantizedRowProduct<float>{y.data(), x.data(), w.on_device(), kRows}, nullptr);
    for (int64_t count = 1; count < kRows; ++count)
      for (int64_t first = 0; first + count <= kRows; first += count) {
        const DeviceArray<float> part(count * kN);
        quantized_row_product(
            QuantizedRowProduct<float>{part.data(), x.data() + first * shape.k, w.on_device(), count},
            nullptr);
        cudaDeviceSynchronize();
        for (int64_t row = 0; row < count; ++row) expect_same(part, row * kN, y, (first + row) * kN, kN);
      }
  }
}

template <class T>
void expect_equal_unaligned(const Shape& shape) {
  const int k = shape.k, n = shape.n;
  const Values<T> x(shape.m * k, 1, 0);
  const Weight w(shape);
  const DeviceArray<T> y(shape.m * n), y_of_x(shape.m * n), y_of_w(shape.m * n),
      x_moved(shape.m * k + 1, [&](size_t i) { return i == 0 ? T{} : x.data()[i - 1]; });
  const DeviceArray<uint32_t> w_moved(size_t(n) * w.words + 1,
                                      [&](size_t i) { return i == 0 ? 0 : w.qweight.data()[i - 1]; });
  const QuantizedWeight aligned = w.on_device();
  QuantizedWeight moved = aligned;
  moved.qweight = w_moved.data() + 1;
  const auto run = [&](const DeviceArray<T>& to, const T* from, const QuantizedWeight& weight) {
    quantized_row_product(QuantizedRowProduct<T>{to.data(), from, weight, shape.m}, nullptr);
  };
  run(y, x.data(), aligned);
  run(y_of_x, x_moved.data() + 1, aligned);
  run(y_of_w, x.data(), moved);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < shape.m; ++row) {
    expect_same(y_of_x, row * n, y, row * n, n);
    expect_same(y_of_w, row * n, y, row * n, n);
  }
}

/// x and weights that are not aligned to 16 bytes have the bits of those that are.
TEST(CudaQuantizedRowProduct, UnalignedOperandsHaveTheSameBits) {
  for (const Shape& shape : {Shape{1, 5, 1120, 4, 64},
                             {3, 3, 560, 8, 16, 0, Groups::in_order, Zeros::stored},
                             {9, 2, 8224, 4, 32}}) {
    if (is_sanitized() && shape.k > 8000) continue;
    expect_equal_unaligned<float>(shape);
    expect_equal_unaligned<__nv_bfloat16>(shape);
  }
}

/// NaNs and infinities stay in their row and their output.
TEST(CudaQuantizedRowProduct, NotFiniteNumbersStayWhereTheyAre) {
  constexpr int kN = 7;
  for (const int k : {64, 75})
    for (const int64_t m : {1, 2, 3, 7, 11}) {
      const DeviceArray<float> x(m * k, [&](size_t i) { return i == size_t(m * k - 1) ? INFINITY : 1.0f; });
      const int words = (k + 7) / 8;
      const DeviceArray<uint32_t> qweight(size_t{kN} * words, [](size_t) { return 0x99999999u; });
      const DeviceArray<float> scales(
          kN, [](size_t i) { return i == kN - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f; });
      const DeviceArray<float> y(m * kN);
      quantized_row_product(QuantizedRowProduct<float>{y.data(),
                                                       x.data(),
                                                       {qweight.data(), scales.data(), nullptr, nullptr, kN,
                                                        k, 4, words, 1, 0, 0, k},
                                                       m},
                            nullptr);
      cudaDeviceSynchronize();
      expect_not_finite_in_last(y.values(), m, kN, k);
    }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::quantized_row_product_test

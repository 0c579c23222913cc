// Dequantized rows of a quantized weight, on the emulator: every element against its definition.
#include "shardwise/kernels/dequantize_cuda.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::dequantize_test {
namespace {

struct Shape {
  int bits, n, k;
  int first_column;  // in the unsharded row, whose groups have `group_size` columns
  int group_size;
  bool has_zero_points, has_group_index;
};

/// A weight whose quantized values, scales and zero points are random, and its values.
struct Weight {
  explicit Weight(const Shape& s)
      : shape(s),
        first_value(s.first_column % (32 / s.bits)),
        first_in_group(s.first_column % s.group_size),
        words((first_value + s.k + 32 / s.bits - 1) / (32 / s.bits)),
        groups((first_in_group + s.k + s.group_size - 1) / s.group_size),
        qweight(s.n * words),
        scales(s.n * groups),
        zero_points(s.n * groups),
        group_index(s.k) {
    std::mt19937 random(7);
    for (int i = 0; i < s.n * words; ++i) qweight.data()[i] = random();
    for (int i = 0; i < s.n * groups; ++i) {
      scales.data()[i] = static_cast<float>(random() % 1000 + 1) / 4096;
      zero_points.data()[i] = static_cast<uint8_t>(random() % (1u << s.bits));
    }
    for (int i = 0; i < s.k; ++i) group_index.data()[i] = static_cast<int>(random() % groups);
  }

  QuantizedWeight on_device() const {
    return {qweight.data(),
            scales.data(),
            shape.has_zero_points ? zero_points.data() : nullptr,
            shape.has_group_index ? group_index.data() : nullptr,
            shape.n,
            shape.k,
            shape.bits,
            words,
            groups,
            first_value,
            first_in_group,
            shape.group_size};
  }

  /// Reads the bits of a row as one long number.
  float value(int row, int column) const {
    const int first_bit = (first_value + column) * shape.bits;
    int quantized = 0;
    for (int bit = 0; bit < shape.bits; ++bit) {
      const int at = first_bit + bit;
      quantized |= static_cast<int>(qweight.values()[row * words + at / 32] >> at % 32 & 1) << bit;
    }
    const int group = shape.has_group_index ? group_index.values()[column]
                                            : (shape.first_column + column) / shape.group_size -
                                                  shape.first_column / shape.group_size;
    const int zero =
        shape.has_zero_points ? zero_points.values()[row * groups + group] : 1 << (shape.bits - 1);
    return static_cast<float>(quantized - zero) * scales.values()[row * groups + group];
  }

  Shape shape;
  int first_value, first_in_group, words, groups;
  DeviceArray<uint32_t> qweight;
  DeviceArray<float> scales;
  DeviceArray<uint8_t> zero_points;
  DeviceArray<int32_t> group_index;
};

template <class T>
void check(const Shape& shape, const std::vector<int64_t>& ids, int64_t begin) {
  const Weight weight(shape);
  const int64_t rows = ids.empty() ? shape.n : std::ssize(ids);
  const DeviceArray<int64_t> on_device(ids.size());
  std::copy(ids.begin(), ids.end(), on_device.data());
  const DeviceArray<T> out(rows * shape.k + 1);
  dequantize(
      Dequantize<T>{out.data(), ids.empty() ? nullptr : on_device.data(), rows, begin, weight.on_device()},
      nullptr);
  cudaDeviceSynchronize();
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = (ids.empty() ? i : ids[i]) - begin;
    for (int column = 0; column < shape.k; ++column) {
      const bool has_row = row >= 0 && row < shape.n;
      const T expected = static_cast<T>(has_row ? weight.value(static_cast<int>(row), column) : 0.0f);
      ASSERT_TRUE(same_bits(out.values()[i * shape.k + column], expected))
          << i << ", " << column << ": " << static_cast<float>(out.values()[i * shape.k + column]) << " for "
          << static_cast<float>(expected);
    }
  }
  EXPECT_EQ(count_nan(out.values()), 1u);
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int bits : {4, 8}) {
    all.push_back({bits, 3, 64, 0, 32, false, false});
    all.push_back({bits, 2, 61, 5, 16, true, false});
    all.push_back({bits, 3, 24, 40, 64, true, false});
    all.push_back({bits, 2, 56, 0, 8, true, true});
    all.push_back({bits, 1, 1, 3, 4, false, false});
  }
  return all;
}

TEST(Dequantize, GivesEveryRow) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check<float>(shape, {}, 0);
      check<__nv_bfloat16>(shape, {}, 0);
      check<__half>(shape, {}, 0);
    }
  });
}

TEST(Dequantize, LooksUpRowsAndWritesZerosForOthers) {
  in_every_order([] {
    for (const Shape& shape : shapes()) check<__nv_bfloat16>(shape, {4, 6, 5, 4, 99, 0}, /*begin=*/4);
  });
}

}  // namespace
}  // namespace shardwise::kernels::cuda::dequantize_test

// The rotary split's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/rotary_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::rotary_test {
namespace {

constexpr int kFirst = 3, kPositions = 16;  // kFirst: of row 0, where nothing else says

struct Shape {
  int64_t s;
  int b, a, k, d, half;
  int of_token() const { return a + 2 * k; }
  int64_t features() const { return s * b * of_token() * d; }
};

/// What positions begin with: one for all, one of each sequence, or the first valid rows.
enum class Positions { same, by_sequence, valid };

/// Tables of random numbers, and positions of rows.
struct Angles {
  Angles(const Shape& shape, Positions positions)
      : cos(kPositions * shape.half, 4, 0),
        sin(kPositions * shape.half, 5, 0),
        positions(positions),
        of_sequence(shape.b, [](size_t batch) { return static_cast<int64_t>(5 - 2 * batch); }) {}
  HeadSplit split(const Shape& n) const {
    return {n.s,
            n.b,
            n.a,
            n.k,
            n.d,
            cos.device.data(),
            sin.device.data(),
            n.half,
            kFirst,
            positions == Positions::by_sequence ? of_sequence.data() : nullptr,
            positions == Positions::valid ? of_sequence.data() : nullptr};
  }
  int64_t position(int64_t row, int batch) const {
    const int64_t own = 5 - 2 * batch;
    if (positions == Positions::same) return kFirst + row;
    return positions == Positions::by_sequence ? own + row : std::max<int64_t>(0, kFirst + row - own);
  }
  Values<float> cos, sin;
  Positions positions;
  DeviceArray<int64_t> of_sequence;
};

/// q, k and v in one array each, with a gap of `gap` elements after each head.
template <class T>
struct HeadArrays {
  HeadArrays(const Shape& n, int gap)
      : gap(gap),
        s(n.s),
        q(n.s * n.b * n.a * (n.d + gap) + 1, 6, 0),
        k(n.s * n.b * n.k * (n.d + gap) + 1, 7, 0),
        v(n.s * n.b * n.k * (n.d + gap) + 1, 8, 0) {}
  Heads<const T> heads(const Values<T>& of, int count, int d) const {
    return {of.device.data(), count * s * (d + gap), s * (d + gap), d + gap};
  }
  int gap;
  int64_t s;
  Values<T> q, k, v;
};

/// Calls visit(row, batch, head, place, array) for each head of a token, where `place` is where the head
/// begins in [s, b, a + 2k, d], `array` is 0 to 2 and `head` is that in the array.
template <class Visit>
void for_heads(const Shape& n, const Visit& visit) {
  for (int64_t row = 0; row < n.s; ++row)
    for (int batch = 0; batch < n.b; ++batch)
      for (int head = 0; head < n.of_token(); ++head) {
        const int array = head < n.a ? 0 : head < n.a + n.k ? 1 : 2;
        visit(row, batch,
              head - (array == 0   ? 0
                      : array == 1 ? n.a
                                   : n.a + n.k),
              ((row * n.b + batch) * n.of_token() + head) * n.d, array);
      }
}

/// Checks a head against fp64: two products and a sum are rounded to fp32, then the result to T.
template <class T>
void check_head(const T* to, const double* from, const double* cos, const double* sin, int d, int half,
                int sign) {
  for (int i = 0; i < d; ++i) {
    if (i >= 2 * half) {
      ASSERT_EQ(static_cast<float>(to[i]), from[i]) << i << " of " << d;
      continue;
    }
    const int pair = i % half;
    const double along = from[i] * cos[pair];
    const double across = (i < half ? -from[i + half] : from[i - half]) * sign * sin[pair];
    ASSERT_NEAR(static_cast<float>(to[i]), along + across,
                kUnitOf<T> * std::abs(along + across) + 2.01 * kUnit * (std::abs(along) + std::abs(across)) +
                    kTinyOf<T>)
        << i << " of " << d << " half " << half;
  }
}

template <class T>
void check_forward(const Shape& n, Positions positions) {
  const Angles angles(n, positions);
  const Values<T> qkv(n.features(), 1, 0);
  const DeviceArray<T> q(n.s * n.b * n.a * n.d + 1), k(n.s * n.b * n.k * n.d + 1),
      v(n.s * n.b * n.k * n.d + 1);
  split_rotary(
      SplitRotary<T>{contiguous_heads(q.data(), n.a, n.s, n.d), contiguous_heads(k.data(), n.k, n.s, n.d),
                     contiguous_heads(v.data(), n.k, n.s, n.d), qkv.device.data(), angles.split(n)},
      nullptr);
  cudaDeviceSynchronize();
  for_heads(n, [&](int64_t row, int batch, int head, int64_t place, int array) {
    const DeviceArray<T>& to = array == 0 ? q : array == 1 ? k : v;
    const int64_t heads = array == 0 ? n.a : n.k, at = angles.position(row, batch) * n.half;
    check_head<T>(to.data() + ((batch * heads + head) * n.s + row) * n.d, &qkv.wide[place],
                  &angles.cos.wide[at], &angles.sin.wide[at], n.d, array == 2 ? 0 : n.half, 1);
  });
  for (const auto* array : {&q, &k, &v}) EXPECT_EQ(count_nan(array->values()), 1u);
}

template <class T>
void check_backward(const Shape& n, Positions positions, int gap) {
  const Angles angles(n, positions);
  const HeadArrays<T> from(n, gap);
  const DeviceArray<T> d_qkv(n.features() + 1);
  split_rotary_backward(
      SplitRotaryBackward<T>{d_qkv.data(), from.heads(from.q, n.a, n.d), from.heads(from.k, n.k, n.d),
                             from.heads(from.v, n.k, n.d), angles.split(n)},
      nullptr);
  cudaDeviceSynchronize();
  for_heads(n, [&](int64_t row, int batch, int head, int64_t place, int array) {
    const Values<T>& of = array == 0 ? from.q : array == 1 ? from.k : from.v;
    const int64_t heads = array == 0 ? n.a : n.k, at = angles.position(row, batch) * n.half;
    check_head<T>(d_qkv.data() + place, &of.wide[((batch * heads + head) * n.s + row) * (n.d + gap)],
                  &angles.cos.wide[at], &angles.sin.wide[at], n.d, array == 2 ? 0 : n.half, -1);
  });
  EXPECT_EQ(count_nan(d_qkv.values()), 1u);
}

/// Eight rows, whose heads are whole packs apart even if rows are not. Heads of whole packs, also of one type
/// only, and of odd widths; partly rotated ones; more packs than threads.
std::vector<Shape> shapes() {
  if (is_sanitized())
    return {{0, 2, 2, 1, 8, 4},
            {8, 1, 2, 1, 16, 8},
            {3, 2, 2, 1, 7, 3},
            {5, 2, 3, 1, 64, 16},
            {1, 1, 1, 0, 600, 299}};
  return {{0, 2, 2, 1, 8, 4},     {8, 1, 2, 1, 16, 8},   {1, 1, 1, 1, 1, 0},   {2, 3, 2, 1, 2, 1},
          {3, 2, 2, 2, 7, 3},     {5, 3, 4, 2, 64, 32},  {5, 2, 3, 1, 64, 16}, {2, 2, 2, 1, 80, 20},
          {3, 2, 1, 1, 65, 32},   {9, 1, 5, 1, 128, 64}, {2, 1, 2, 1, 24, 8},  {1, 2, 1, 1, 1000, 500},
          {1, 1, 1, 0, 1002, 101}};
}

TEST(CudaRotary, ForwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check_forward<float>(shape, Positions::same);
      check_forward<__nv_bfloat16>(shape, Positions::by_sequence);
      check_forward<__half>(shape, Positions::valid);
    }
  });
}

TEST(CudaRotary, BackwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Shape& shape : shapes()) {
      check_backward<float>(shape, Positions::valid, /*gap=*/0);
      check_backward<float>(shape, Positions::same, /*gap=*/4);
      check_backward<__nv_bfloat16>(shape, Positions::by_sequence, /*gap=*/8);
      check_backward<__nv_bfloat16>(shape, Positions::same, /*gap=*/1);
    }
  });
}

/// Heads, features and tables that are not aligned to 16 bytes, each alone, have the bits of those that are.
TEST(CudaRotary, UnalignedRowsHaveTheSameBits) {
  constexpr Shape kN = {2, 1, 1, 1, 16, 8};
  const auto run = [&](int which) {
    const auto array = [&](int number, size_t n) {
      const Values<float> values(n, number, 0);
      const size_t by = number == which;
      return DeviceArray<float>(
          n + 1, [&](size_t i) { return i < by || i - by >= n ? 0 : values.device.data()[i - by]; });
    };
    const auto at = [&](int number, const DeviceArray<float>& of) { return of.data() + (number == which); };
    const DeviceArray<float> qkv = array(1, kN.features()), cos = array(2, kPositions * kN.half),
                             sin = array(3, kPositions * kN.half);
    const DeviceArray<float> q(33), k(33), v(33);
    const HeadSplit split = {kN.s, 1, 1, 1, kN.d, at(2, cos), at(3, sin), kN.half, kFirst, nullptr, nullptr};
    split_rotary(SplitRotary<float>{contiguous_heads(at(4, q), 1, kN.s, kN.d),
                                    contiguous_heads(at(5, k), 1, kN.s, kN.d),
                                    contiguous_heads(at(6, v), 1, kN.s, kN.d), at(1, qkv), split},
                 nullptr);
    cudaDeviceSynchronize();
    std::vector<float> all;
    for (const auto* of : {&q, &k, &v}) {
      EXPECT_EQ(count_nan(of->values()), 1u) << which;
      for (const float value : of->values())
        if (!std::isnan(value)) all.push_back(value);
    }
    return all;
  };
  const std::vector<float> expected = run(0);
  for (int which = 1; which <= 6; ++which) EXPECT_EQ(run(which), expected) << which;
}

}  // namespace
}  // namespace shardwise::kernels::cuda::rotary_test

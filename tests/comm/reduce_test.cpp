// The reduction kernels of every instruction set that this machine has, against a scalar reference and each
// other.
#include "shardwise/comm/shm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace shardwise::comm::shm {
namespace {

std::vector<const ReduceKernels*> available() {
  std::vector<const ReduceKernels*> kernels = {&baseline::reduce_kernels};
  if (__builtin_cpu_supports("avx2")) kernels.push_back(&avx2::reduce_kernels);
  if (__builtin_cpu_supports("avx512bw")) kernels.push_back(&avx512::reduce_kernels);
  return kernels;
}

// All pairs of one special and one random 16-bit pattern; c10's conversions are the reference.
template <typename T>
void check_16_bit(Element element) {
  constexpr int64_t n = 1 << 16;
  std::vector<T> a(n), b(n), result(n);
  std::mt19937 random(1);
  for (int64_t i = 0; i < n; ++i) {
    a[size_t(i)] = T(uint16_t(i), T::from_bits());
    b[size_t(i)] = i % 2 ? T(uint16_t(random()), T::from_bits()) : T(0.f);
  }
  const void* sources[] = {a.data(), b.data()};
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernels->sum[int(element)](sources, 2, &target, 1, n);
    for (size_t i = 0; i < size_t(n); ++i) {
      const T expected = float(a[i]) + float(b[i]);
      const bool both_nan = std::isnan(float(expected)) && std::isnan(float(result[i]));
      ASSERT_TRUE(both_nan || result[i].x == expected.x) << i << " " << float(a[i]) << " " << float(b[i]);
    }
  }
}

TEST(Reduce, Bf16RoundsToNearestEven) {
  check_16_bit<c10::BFloat16>(Element::bf16);
}

TEST(Reduce, Fp16RoundsToNearestEven) {
  check_16_bit<c10::Half>(Element::f16);
}

// Sums of three that fall between two halves, subnormal ones included.
TEST(Reduce, Fp16RoundsSumsOfManyOnce) {
  std::mt19937 random(2);
  constexpr size_t n = 100'000;
  std::vector<std::vector<c10::Half>> inputs(3, std::vector<c10::Half>(n));
  for (auto& input : inputs) {
    for (auto& x : input) x = c10::Half(uint16_t(random() & 0xbfff), c10::Half::from_bits());
  }
  const void* sources[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
  std::vector<c10::Half> result(n);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernels->sum[int(Element::f16)](sources, 3, &target, 1, int64_t(n));
    for (size_t i = 0; i < n; ++i) {
      const c10::Half expected = float(inputs[0][i]) + float(inputs[1][i]) + float(inputs[2][i]);
      ASSERT_EQ(result[i].x & 0x7fff, expected.x & 0x7fff) << i;
    }
  }
}

TEST(Reduce, NaNStaysWhicheverRankHasIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1, 2}, b = {1, nan, 3};
  const void* sources[] = {a.data(), b.data()};
  std::vector<float> result(3);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernels->max[int(Element::f32)](sources, 2, &target, 1, 3);
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
    EXPECT_EQ(result[2], 3);
  }
}

TEST(Reduce, IntegersWrap) {
  const std::vector<uint8_t> a(40, 200), b(40, 100);
  const std::vector<int64_t> c(3, std::numeric_limits<int64_t>::max()), d(3, 1);
  std::vector<uint8_t> bytes(40);
  std::vector<int64_t> longs(3);
  for (const ReduceKernels* kernels : available()) {
    const void* small[] = {a.data(), b.data()};
    void* target = bytes.data();
    kernels->sum[int(Element::u8)](small, 2, &target, 1, 40);
    EXPECT_EQ(bytes, std::vector<uint8_t>(40, 44));
    const void* large[] = {c.data(), d.data()};
    target = longs.data();
    kernels->sum[int(Element::i64)](large, 2, &target, 1, 3);
    EXPECT_EQ(longs, std::vector<int64_t>(3, std::numeric_limits<int64_t>::min()));
  }
}

TEST(Reduce, NegativeIntegersCompareSigned) {
  const std::vector<int32_t> a = {-5, -1}, b = {-3, 4};
  const void* sources[] = {a.data(), b.data()};
  std::vector<int32_t> result(2);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernels->max[int(Element::i32)](sources, 2, &target, 1, 2);
    EXPECT_EQ(result, (std::vector<int32_t>{-3, 4}));
  }
}

TEST(Reduce, WritesEveryTargetEvenWhenTheyAreTheSources) {
  std::vector<double> a(2500), b(2500), c(2500);
  for (size_t i = 0; i < a.size(); ++i) a[i] = double(i), b[i] = 10, c[i] = 0.5;
  const void* sources[] = {a.data(), b.data(), c.data()};
  void* targets[] = {a.data(), b.data(), c.data()};
  reduce_kernel(at::kDouble, Reduce::sum)(sources, 3, targets, 3, 2500);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], double(i) + 10.5);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, c);
}

}  // namespace
}  // namespace shardwise::comm::shm

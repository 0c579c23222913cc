// Dropout's CUDA kernels, on the emulator, against Philox written here. cpu/dropout_test.cpp compares them
// with the CPU's.
#include "shardwise/kernels/dropout_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::dropout_test {
namespace {

constexpr uint64_t kKey = 0x0123456789abcdef;
/// An element whose word is 2^32 − 1: it is kept unless p is 1.
constexpr uint64_t kLastDropped = 172'559'876;

/// Salmon et al. 2011, Philox4x32-10: returns the words of a block.
std::array<uint32_t, 4> philox_words(uint64_t block) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0};
  auto k0 = static_cast<uint32_t>(kKey), k1 = static_cast<uint32_t>(kKey >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
  }
  return c;
}

bool is_kept(uint64_t element, double p) {
  if (p == 1) return false;
  const uint64_t block = element / 32 * 8 + element % 16 / 2, word = element % 32 / 16 * 2 + element % 2;
  return philox_words(block)[word] >= std::min(std::round(p * 0x1p32), 0x1p32 - 1);
}

template <class T>
T rounded(float x) {
  return static_cast<T>(x);
}
template <class T>
float wide(T x) {
  return static_cast<float>(x);
}

struct Case {
  int64_t rows, h;
  uint64_t first;
};

/// Of x alone, or with residual and maybe bias; `moved` elements from an aligned address.
template <class T>
void check(const Case& c, double p, bool has_residual, bool has_bias, size_t moved = 0) {
  const size_t n = c.rows * c.h;
  const Values<T> x(n + moved, 1, 0), residual(n + moved, 2, 0), bias(c.h + moved, 3, 0);
  if (n > 0) x.device.data()[moved] = residual.device.data()[moved] = rounded<T>(-0.0f);
  const DeviceArray<T> y(n + moved + 1);
  dropout(
      Dropout<T>{y.data() + moved, x.device.data() + moved, has_bias ? bias.device.data() + moved : nullptr,
                 has_residual ? residual.device.data() + moved : nullptr, c.rows, c.h, p, kKey, c.first},
      nullptr);
  cudaDeviceSynchronize();
  const auto scale = static_cast<float>(1 / (1 - p));
  for (size_t i = 0; i < n; ++i) {
    T value = x.device.data()[moved + i];
    if (has_bias) value = rounded<T>(wide(value) + wide(bias.device.data()[moved + i % c.h]));
    value = rounded<T>(is_kept(c.first + i, p) ? wide(value) * scale : 0.0f);
    if (has_residual) value = rounded<T>(wide(residual.device.data()[moved + i]) + wide(value));
    ASSERT_TRUE(same_bits(y.values()[moved + i], value))
        << wide(y.values()[moved + i]) << " is not " << wide(value) << " at " << i << " of " << c.rows
        << " rows of " << c.h << " from " << c.first << " p " << p;
  }
  EXPECT_EQ(count_nan(y.values()), 1 + moved);
}

/// Whole groups of 32, at the limits of a block, and rows that begin or end within a group.
std::vector<Case> cases() {
  if (is_sanitized()) return {{0, 8, 0}, {3, 64, 64}, {2, 65, 3}, {1, 1, 31}, {1, 4096 + 32, 0}};
  return {{0, 8, 0},
          {3, 32, 0},
          {3, 64, 64 * 5},
          {2, 64, 3},
          {2, 100, 32},
          {5, 7, 1},
          {1, 1, 31},
          {40, 2, 63},
          {3, 65, 30},
          {2, 127, 31},
          {1, 1000, (uint64_t{1} << 36) + 5},
          {1, 2048, 32},
          {2, 2080, 0},
          {1, 4096, 64},
          {2, 4128, 0},
          {1, 1024, uint64_t{1} << 37}};
}

TEST(CudaDropout, HasTheBitsOfTheFormulaInEveryOrder) {
  in_every_order([] {
    for (const Case& c : cases()) {
      check<float>(c, 0.1, /*has_residual=*/false, /*has_bias=*/false);
      check<__nv_bfloat16>(c, 0.5, /*has_residual=*/false, /*has_bias=*/false);
    }
  });
}

TEST(CudaDropout, AddsBiasAndResidualWithTheirRoundingsInEveryOrder) {
  in_every_order([] {
    for (const Case& c : cases()) {
      check<float>(c, 0.5, /*has_residual=*/true, /*has_bias=*/true);
      check<__nv_bfloat16>(c, 0.1, /*has_residual=*/true, /*has_bias=*/true);
      check<__nv_bfloat16>(c, 0.1, /*has_residual=*/true, /*has_bias=*/false);
    }
  });
}

TEST(CudaDropout, KeepsAllOrNothingAtTheLimits) {
  ASSERT_TRUE(is_kept(kLastDropped, 1 - 0x1p-33));
  for (const Case& c :
       {Case{2, 64, 32}, {2, 63, 5}, {1, 64, kLastDropped / 32 * 32}, {2, 7, kLastDropped - 1}}) {
    for (const double p : {0.0, 1.0, 1 - 0x1p-33}) {
      check<float>(c, p, /*has_residual=*/false, /*has_bias=*/false);
      check<__nv_bfloat16>(c, p, /*has_residual=*/true, /*has_bias=*/true);
    }
  }
}

TEST(CudaDropout, UnalignedRowsHaveTheSameBits) {
  for (const bool has_residual : {false, true}) check<float>({2, 64, 32}, 0.3, has_residual, has_residual, 1);
}

/// Infinite inputs that are dropped give 0.
TEST(CudaDropout, DropsInfiniteInputs) {
  constexpr int kN = 64;
  const DeviceArray<float> x(kN, [](size_t) { return INFINITY; }), y(kN);
  dropout(Dropout<float>{y.data(), x.data(), nullptr, nullptr, 1, kN, 0.5, kKey, 0}, nullptr);
  cudaDeviceSynchronize();
  for (int i = 0; i < kN; ++i) EXPECT_EQ(y.values()[i], is_kept(i, 0.5) ? INFINITY : 0) << i;
}

}  // namespace
}  // namespace shardwise::kernels::cuda::dropout_test

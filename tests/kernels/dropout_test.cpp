#include "shardwise/kernels/dropout.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "shardwise/base/philox.h"
#include "shardwise/kernels/dropout_isa.h"
#include "tests/kernels/support.h"

namespace shardwise::kernels::dropout_test {
namespace {

const RandomKey kKey = RandomKey::of(11).fold(3);

// The random word of an element, from the scalar block function.
uint32_t draw(RandomKey key, uint64_t element) {
  const uint64_t group = element / 32, half = element % 32 / 16, block = element % 16 / 2;
  return base::philox(group * 8 + block, base::PhiloxUse::elements, key.value).word[2 * half + element % 2];
}

at::Tensor reference(const at::Tensor& x, double p, RandomKey key, int64_t first) {
  at::Tensor y = wide(x).clone();
  double* values = y.mutable_data_ptr<double>();
  for (int64_t i = 0; i < y.numel(); ++i) {
    const bool is_kept = draw(key, static_cast<uint64_t>(first + i)) >= p * 0x1p32;
    values[i] = is_kept ? values[i] / (1 - p) : 0;
  }
  return y;
}

TEST(Dropout, MaskMatchesScalarPhilox) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{1000}, (int64_t{1} << 36) - 5}) {
      for (const int64_t count : {1, 17, 33, 101, 1000}) {
        const at::Tensor x = random_tensor({count}, 1, dtype);
        const at::Tensor expected = reference(x, 0.3, kKey, first);
        EXPECT_LE(relative_error(dropout(x, 0.3, kKey, first), expected), bound(dtype, 2)) << dtype << first;
      }
    }
  }
}

TEST(Dropout, SlicesEqualTheUnshardedMask) {
  const at::Tensor x = random_tensor({7, 3, 33}, 3, at::kFloat);
  const at::Tensor unsharded = dropout(x, 0.5, kKey, 0);
  for (const auto& [begin, size] : {std::pair<int64_t, int64_t>{0, 2}, {2, 3}, {5, 2}, {3, 0}}) {
    EXPECT_TRUE(same_bits(dropout(x.narrow(0, begin, size), 0.5, kKey, begin * 99),
                          unsharded.narrow(0, begin, size)));
  }
}

TEST(Dropout, IsBitwiseIndependentOfThreadCount) {
  const at::Tensor x = random_tensor({100003}, 4, at::kFloat);
  const Threads one(1);
  const at::Tensor alone = dropout(x, 0.1, kKey, 5);
  const Threads three(3);
  EXPECT_TRUE(same_bits(dropout(x, 0.1, kKey, 5), alone));
}

TEST(Dropout, KeepsTheExpectedFraction) {
  const int64_t count = 1 << 20;
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor y = dropout(at::ones({count}), p, kKey, 0);
    const double kept = y.ne(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(kept, 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(count)));
    EXPECT_NEAR(y.max().item<double>(), 1 / (1 - p), 1e-6 / (1 - p));
  }
}

TEST(Dropout, MasksOfDifferentKeysAreIndependent) {
  const int64_t count = 1 << 18;
  const at::Tensor a = dropout(at::ones({count}), 0.5, kKey, 0).ne(0),
                   b = dropout(at::ones({count}), 0.5, kKey.fold(1), 0).ne(0);
  EXPECT_NEAR(a.eq(b).to(at::kDouble).mean().item<double>(), 0.5,
              2.5 / std::sqrt(static_cast<double>(count)));
}

TEST(Dropout, HandlesZeroAndOne) {
  const at::Tensor x = random_tensor({5, 3}, 5, at::kFloat);
  EXPECT_TRUE(dropout(x, 0, kKey, 0).is_same(x));
  EXPECT_TRUE(same_bits(dropout(x, 1, kKey, 0), at::zeros({5, 3})));
  EXPECT_EQ(dropout(at::zeros({0, 4}), 0.5, kKey, 7).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_TRUE(same_bits(dropout(x.t(), 0.5, kKey, 0), dropout(x.t().contiguous(), 0.5, kKey, 0)));
  EXPECT_THROW(dropout(x, -0.1, kKey, 0), c10::ValueError);
  EXPECT_THROW(dropout(x, std::nan(""), kKey, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::dropout_test

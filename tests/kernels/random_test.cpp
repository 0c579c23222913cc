#include "shardwise/kernels/random.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/kernels/support.h"
#include "tests/support/error_text.h"

namespace shardwise::kernels::random_test {
namespace {

using base::ShardRule;
using base::Split;

const RandomKey kKey = RandomKey::of(7);

at::Tensor unsharded_normal(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  at::Tensor unsharded = at::empty(shape, dtype);
  fill_normal_(unsharded, shape, 0, {}, kKey, 0, 1);
  return unsharded;
}

TEST(RandomKey, FoldedKeysDiffer) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 32; ++seed) {
    for (uint64_t data = 0; data < 32; ++data) seen.insert(RandomKey::of(seed).fold(data).value);
  }
  EXPECT_EQ(seen.size(), 32u * 32u);
  EXPECT_EQ(kKey.fold(1).fold(2), kKey.fold(1).fold(2));
  EXPECT_NE(kKey.fold(1).fold(2), kKey.fold(2).fold(1));
}

TEST(Random, SlicesEqualTheUnshardedTensor) {
  const Split heads = Split::even("heads", 7, 3), rest = Split::even("rest", 17, 3, 2),
              none = Split::even("none", 1, 3);
  const std::vector<ShardRule> rules = {ShardRule::sharded(0, rest),
                                        ShardRule::sharded(1, rest),
                                        ShardRule::sharded(2, rest),
                                        {1, {{heads, 1}, {none, 3}, {heads, 1}}}};
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor unsharded = unsharded_normal({17, 17, 17}, dtype);
    for (const ShardRule& rule : rules) {
      for (int rank = 0; rank < 3; ++rank) {
        at::Tensor local = at::empty(rule.local_shape({17, 17, 17}, rank), dtype);
        fill_normal_(local, {17, 17, 17}, rule.dim, rule.pieces(rank), kKey, 0, 1);
        EXPECT_TRUE(same_bits(local, testing::slice_of(unsharded, rule, rank))) << dtype << rule.dim << rank;
      }
    }
  }
}

TEST(Random, IsBitwiseIndependentOfThreadCount) {
  const Threads one(1);
  const at::Tensor alone = unsharded_normal({70001}, at::kFloat);
  const Threads three(3);
  EXPECT_TRUE(same_bits(unsharded_normal({70001}, at::kFloat), alone));
}

TEST(Random, DtypesRoundTheSameNumbers) {
  const at::Tensor exact = unsharded_normal({1001}, at::kDouble);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_LE(relative_error(unsharded_normal({1001}, dtype), exact), roundoff(dtype));
  }
}

// Moments of 2^18 draws, each within five standard errors.
TEST(Random, NormalHasTheExpectedMoments) {
  const int64_t count = 1 << 18;
  at::Tensor x = at::empty({count}, at::kDouble);
  fill_normal_(x, {count}, 0, {}, kKey, 3, 0.5);
  const at::Tensor z = (x - 3) / 0.5;
  const double error = 5 / std::sqrt(static_cast<double>(count));
  EXPECT_NEAR(z.mean().item<double>(), 0, error);
  EXPECT_NEAR(z.pow(2).mean().item<double>(), 1, error * std::sqrt(2));
  EXPECT_NEAR(z.pow(3).mean().item<double>(), 0, error * std::sqrt(15));
  EXPECT_NEAR(z.pow(4).mean().item<double>(), 3, error * std::sqrt(96));
  EXPECT_NEAR((z.narrow(0, 0, count - 1) * z.narrow(0, 1, count - 1)).mean().item<double>(), 0, error);
}

// The Kolmogorov-Smirnov distance between the empirical and the exact distribution, which exceeds 1.95/√n
// with probability 1/1000.
double kolmogorov_smirnov(const at::Tensor& sample, double (*distribution)(double)) {
  std::vector<double> sorted(sample.const_data_ptr<double>(),
                             sample.const_data_ptr<double>() + sample.numel());
  std::sort(sorted.begin(), sorted.end());
  double largest = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double expected = distribution(sorted[i]), n = static_cast<double>(sorted.size());
    largest = std::max({largest, expected - i / n, (i + 1) / n - expected});
  }
  return largest;
}

TEST(Random, DistributionsAreNormalAndUniform) {
  const int64_t count = 1 << 16;
  const double limit = 1.95 / std::sqrt(static_cast<double>(count));
  EXPECT_LE(kolmogorov_smirnov(unsharded_normal({count}, at::kDouble),
                               [](double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }),
            limit);
  at::Tensor uniform = at::empty({count}, at::kDouble);
  fill_uniform_(uniform, {count}, 0, {}, kKey, -2, 6);
  EXPECT_LE(kolmogorov_smirnov(uniform, [](double u) { return (u + 2) / 8; }), limit);
  EXPECT_GT(uniform.min().item<double>(), -2);
  EXPECT_LT(uniform.max().item<double>(), 6);
}

TEST(Random, RejectsMismatchedSlices) {
  at::Tensor local = at::empty({2, 3}), transposed = at::empty({3, 2}).t();
  EXPECT_THROW(fill_normal_(local, {4, 3}, 0, {}, kKey, 0, 1), c10::ValueError);
  EXPECT_THROW(fill_normal_(local, {4, 3}, 0, {{0, 0, 3}}, kKey, 0, 1), c10::ValueError);
  EXPECT_THROW(fill_normal_(local, {4, 3}, 0, {{3, 0, 2}}, kKey, 0, 1), c10::ValueError);
  EXPECT_THROW(fill_normal_(local, {4, 3}, 2, {{0, 0, 2}}, kKey, 0, 1), c10::ValueError);
  EXPECT_THROW(fill_normal_(transposed, {2, 3}, 0, {}, kKey, 0, 1), c10::ValueError);
}

TEST(Random, RejectsIntegers) {
  at::Tensor local = at::empty({2, 3}, at::kLong);
  EXPECT_PRED2(test::contains, test::error_text([&] {
                 fill_normal_(local, {2, 3}, 0, {}, kKey, 0, 1);
               }),
               "dtype must be fp64, fp32, bf16 or fp16; got Long");
}

}  // namespace
}  // namespace shardwise::kernels::random_test

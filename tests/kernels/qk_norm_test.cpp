#include "shardwise/kernels/qk_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "shardwise/kernels/tensors.h"
#include "tests/kernels/support.h"

namespace shardwise::kernels::qk_norm_test {
namespace {

constexpr double kEps = 1e-6;

struct Case {
  int64_t s, b, a, k, d, turned;
};
const std::vector<Case> kCases = {{5, 2, 4, 2, 6, 6},    {1, 1, 1, 1, 2, 2}, {131, 2, 3, 3, 16, 16},
                                  {70, 1, 6, 1, 34, 34}, {9, 3, 2, 1, 7, 4}, {3, 70, 2, 1, 8, 8}};

RotaryTables tables_of(const Case& c, at::ScalarType dtype) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < c.turned / 2; ++i) frequencies.push_back(1 / (1.0 + i));
  return rotary_tables(frequencies, c.s, accumulator_type(dtype));
}

// x·rstd·weight per head, then x·cos + rotate_half(x)·sin. `x` [s, b, heads·d] → [b, heads, s, d].
at::Tensor reference(const at::Tensor& x, const at::Tensor& weight, const RotaryTables& tables) {
  const int64_t d = weight.size(0), turned = 2 * tables.cos.size(1), half = turned / 2;
  const at::Tensor heads = x.view({x.size(0), x.size(1), -1, d}).permute({1, 2, 0, 3});
  const at::Tensor normed = heads * at::rsqrt((heads * heads).mean(-1, /*keepdim=*/true) + kEps) * weight;
  const at::Tensor first = normed.narrow(-1, 0, half), second = normed.narrow(-1, half, half);
  const at::Tensor cos = wide(tables.cos), sin = wide(tables.sin);
  return at::cat(
      {first * cos - second * sin, second * cos + first * sin, normed.narrow(-1, turned, d - turned)}, -1);
}

QkNormWeights weights_of(const Case& c, at::ScalarType dtype) {
  return {random_tensor({c.d}, 11, dtype) + 1, random_tensor({c.d}, 12, dtype) + 1};
}

QkNormWeights zero_grads(const Case& c, at::ScalarType dtype) {
  return {at::zeros({c.d}, accumulator_type(dtype)), at::zeros({c.d}, accumulator_type(dtype))};
}

struct Fixture {
  Case c;
  at::Tensor qkv;
  HeadSplit split;
  QkNormParams norm;
  Qkv grads;
  Fixture(const Case& shape, at::ScalarType dtype)
      : c(shape),
        qkv(random_tensor({c.s, c.b, (c.a + 2 * c.k) * c.d}, 1, dtype)),
        split{c.a, c.k, c.d, tables_of(c, dtype)},
        norm{weights_of(c, dtype), kEps},
        grads{random_tensor({c.b, c.a, c.s, c.d}, 2, dtype), random_tensor({c.b, c.k, c.s, c.d}, 3, dtype),
              random_tensor({c.b, c.k, c.s, c.d}, 4, dtype)} {}
};

TEST(QkNorm, ForwardAndGradientsMatchFp64Reference) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(::testing::Message() << dtype << " s " << c.s << " d " << c.d);
      const Fixture f(c, dtype);
      const at::Tensor x = leaf(f.qkv), wq = leaf(f.norm.weights.q), wk = leaf(f.norm.weights.k);
      const at::Tensor q = reference(x.narrow(2, 0, c.a * c.d), wq, f.split.tables);
      const at::Tensor k = reference(x.narrow(2, c.a * c.d, c.k * c.d), wk, f.split.tables);
      const at::Tensor v = x.narrow(2, (c.a + c.k) * c.d, c.k * c.d).view({c.s, c.b, c.k, c.d});
      ((q * wide(f.grads.q)).sum() + (k * wide(f.grads.k)).sum() +
       (v.permute({1, 2, 0, 3}) * wide(f.grads.v)).sum())
          .backward();
      const Qkv got = split_norm_rotary(f.qkv, f.split, f.norm);
      // The roundings of a sum over d, a root, and the products of norm and rotation.
      const double limit = bound(dtype, 16 + c.d);
      EXPECT_LE(relative_error(got.q, q), limit);
      EXPECT_LE(relative_error(got.k, k), limit);
      EXPECT_LE(relative_error(got.v, v.permute({1, 2, 0, 3})), 0);
      EXPECT_TRUE(got.v.is_alias_of(f.qkv)) << "v is a view of qkv";
      const QkNormWeights weight_grads = zero_grads(c, dtype);
      const at::Tensor d_qkv = split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, weight_grads);
      // For d = 2, dx is a difference of nearly equal terms.
      EXPECT_LE(relative_error(d_qkv, x.grad()), 8 * limit);
      EXPECT_LE(relative_error(weight_grads.q, wq.grad()), 8 * bound(accumulator_type(dtype), 16 + c.d));
      EXPECT_LE(relative_error(weight_grads.k, wk.grad()), 8 * bound(accumulator_type(dtype), 16 + c.d));
    }
  }
}

TEST(QkNorm, AccumulatesWeightGradients) {
  const Case c = kCases[2];
  const Fixture f(c, at::kDouble);
  const QkNormWeights once = zero_grads(c, at::kDouble), twice = zero_grads(c, at::kDouble);
  split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, once);
  split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, twice);
  split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, twice);
  EXPECT_LE(relative_error(twice.q, once.q * 2), 1e-15);
  EXPECT_LE(relative_error(twice.k, once.k * 2), 1e-15);
}

TEST(QkNorm, SkipsGradientsOfFrozenWeights) {
  const Case c = kCases[0];
  const Fixture f(c, at::kDouble);
  QkNormWeights weight_grads = zero_grads(c, at::kDouble);
  const at::Tensor both = split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, weight_grads);
  const at::Tensor expected = weight_grads.k.clone();
  weight_grads = {at::Tensor(), at::zeros({c.d}, at::kDouble)};
  EXPECT_TRUE(same_bits(split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, weight_grads), both));
  EXPECT_TRUE(same_bits(weight_grads.k, expected));
}

TEST(QkNorm, IsBitwiseIndependentOfThreadCount) {
  for (const Case& c : {Case{300, 2, 4, 2, 32, 32}, {7, 70, 4, 2, 32, 32}, {50, 20, 4, 2, 32, 32}}) {
    const Fixture f(c, at::kFloat);
    const auto run = [&](int threads) {
      const Threads scope(threads);
      const QkNormWeights weight_grads = zero_grads(c, at::kFloat);
      const at::Tensor d_qkv = split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, weight_grads);
      return at::cat({d_qkv.flatten(), weight_grads.q, weight_grads.k});
    };
    EXPECT_TRUE(same_bits(run(1), run(3))) << c.b;
  }
}

TEST(QkNorm, AcceptsZeroHeadsAndZeroRows) {
  for (const Case& each : {Case{3, 2, 0, 0, 4, 4}, {0, 2, 2, 1, 4, 4}, {3, 0, 2, 1, 4, 4}}) {
    const Fixture f(each, at::kFloat);
    EXPECT_EQ(split_norm_rotary(f.qkv, f.split, f.norm).q.sizes(),
              at::IntArrayRef({each.b, each.a, each.s, each.d}));
    const QkNormWeights weight_grads = zero_grads(each, at::kFloat);
    split_norm_rotary_backward(f.grads, f.qkv, f.split, f.norm, weight_grads);
    EXPECT_EQ(weight_grads.q.abs().sum().item<float>(), 0);
  }
}

TEST(QkNorm, RejectsMismatchedWeights) {
  Fixture f(kCases[0], at::kFloat);
  f.norm.weights.k = at::zeros({5});
  EXPECT_THROW(split_norm_rotary(f.qkv, f.split, f.norm), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::qk_norm_test

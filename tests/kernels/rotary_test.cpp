#include "shardwise/kernels/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tests/kernels/support.h"
#include "tests/support/error_text.h"

namespace shardwise::kernels::rotary_test {
namespace {

std::vector<double> frequencies(int64_t rotated) {
  std::vector<double> result;
  for (int64_t i = 0; i < rotated / 2; ++i) result.push_back(std::pow(10000.0, -2.0 * i / rotated));
  return result;
}

at::ScalarType table_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// x·cos + rotate_half(x)·sin with doubled tables, as in Hugging Face; elements beyond those are unchanged.
// `heads` [b, a, s, d].
at::Tensor rotated(const at::Tensor& heads, const RotaryTables& tables, int64_t first) {
  const int64_t s = heads.size(2), turned = 2 * tables.cos.size(1);
  const at::Tensor cos = wide(tables.cos).narrow(0, first, s).repeat({1, 2});
  const at::Tensor sin = wide(tables.sin).narrow(0, first, s).repeat({1, 2});
  const at::Tensor x = heads.narrow(-1, 0, turned), rest = heads.narrow(-1, turned, heads.size(-1) - turned);
  const at::Tensor half = at::cat({-x.narrow(-1, turned / 2, turned / 2), x.narrow(-1, 0, turned / 2)}, -1);
  return at::cat({x * cos + half * sin, rest}, -1);
}

Qkv reference(const at::Tensor& qkv, int64_t a, int64_t k, int64_t d, const RotaryTables& tables,
              int64_t first) {
  const auto heads = [&](int64_t begin, int64_t count) {
    return qkv.narrow(2, begin * d, count * d).unflatten(2, {count, d}).permute({1, 2, 0, 3});
  };
  return {rotated(heads(0, a), tables, first), rotated(heads(a, k), tables, first), heads(a + k, k)};
}

// `turned` is the number of a head's d elements that are rotated.
struct Case {
  int64_t s, b, a, k, d, first, turned;
};
const std::vector<Case> kCases = {{5, 2, 4, 2, 6, 0, 6},    {1, 1, 1, 1, 2, 7, 2},   {17, 3, 3, 3, 64, 4, 64},
                                  {33, 1, 6, 1, 34, 1, 34}, {5, 2, 4, 2, 16, 0, 12}, {4, 2, 2, 1, 7, 3, 2},
                                  {9, 1, 2, 2, 5, 0, 0}};

TEST(Rotary, ForwardAndBackwardMatchFp64Reference) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [s, b, a, k, d, first, turned] : kCases) {
      const RotaryTables tables = rotary_tables(frequencies(turned), first + s, table_dtype(dtype));
      const HeadSplit split{a, k, d, tables, first};
      const at::Tensor qkv = random_tensor({s, b, (a + 2 * k) * d}, 1, dtype);
      const at::Tensor x = leaf(qkv);
      const Qkv expected = reference(x, a, k, d, tables, first);
      const Qkv got = split_rotary(qkv, split);
      EXPECT_LE(relative_error(got.q, expected.q), bound(dtype, 3));
      EXPECT_LE(relative_error(got.k, expected.k), bound(dtype, 3));
      EXPECT_LE(relative_error(got.v, expected.v), 0);
      const Qkv grads = {random_tensor({b, a, s, d}, 2, dtype), random_tensor({b, k, s, d}, 3, dtype),
                         random_tensor({b, k, s, d}, 4, dtype)};
      ((expected.q * grads.q).sum() + (expected.k * grads.k).sum() + (expected.v * grads.v).sum()).backward();
      const at::Tensor d_qkv = split_rotary_backward(grads, split);
      EXPECT_LE(relative_error(d_qkv, x.grad()), bound(dtype, 3));
      // Gradients in attention's layout, and heads with strided elements.
      const auto by_row = [](const at::Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); };
      const auto apart = [](const at::Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
      EXPECT_TRUE(
          same_bits(split_rotary_backward({by_row(grads.q), apart(grads.k), by_row(grads.v)}, split), d_qkv));
    }
  }
}

TEST(Rotary, TablesContainTheAnglesOfEachPosition) {
  const RotaryTables tables = rotary_tables({1.0, 0.25}, 9, at::kDouble);
  EXPECT_EQ(tables.cos.sizes(), at::IntArrayRef({9, 2}));
  EXPECT_EQ(tables.cos[7][1].item<double>(), std::cos(7 * 0.25));
  EXPECT_EQ(tables.sin[7][0].item<double>(), std::sin(7.0));
  EXPECT_EQ(rotary_tables({1.0, 0.25}, 9, at::kFloat).sin[8][1].item<float>(),
            static_cast<float>(std::sin(2.0)));
}

TEST(Rotary, FirstPositionOffsetsTheAngles) {
  const RotaryTables tables = rotary_tables(frequencies(8), 12, at::kFloat);
  const at::Tensor qkv = random_tensor({12, 2, 32}, 5, at::kFloat);
  const Qkv unsharded = split_rotary(qkv, {2, 1, 8, tables}),
            tail = split_rotary(qkv.narrow(0, 5, 7), {2, 1, 8, tables, 5});
  EXPECT_TRUE(same_bits(tail.q, unsharded.q.narrow(2, 5, 7)));
  EXPECT_TRUE(same_bits(tail.k, unsharded.k.narrow(2, 5, 7)));
}

TEST(Rotary, SequencesMayHavePositionsOfTheirOwn) {
  const RotaryTables tables = rotary_tables(frequencies(8), 20, at::kFloat);
  const at::Tensor qkv = random_tensor({2, 3, (4 + 2 * 2) * 8}, 4, at::kBFloat16);
  HeadSplit split{4, 2, 8, tables};
  split.first_positions = {5, 0, 18};
  const Qkv together = split_rotary(qkv, split);
  for (int64_t i = 0; i < 3; ++i) {
    const HeadSplit one{4, 2, 8, tables, split.first_positions[size_t(i)]};
    const Qkv alone = split_rotary(qkv.narrow(1, i, 1), one);
    EXPECT_TRUE(at::equal(together.q[i], alone.q[0])) << i;
    EXPECT_TRUE(at::equal(together.k[i], alone.k[0])) << i;
    EXPECT_TRUE(at::equal(together.v[i], alone.v[0])) << i;
  }
  split.first_positions = {5, 0};
  EXPECT_PRED2(test::contains, test::error_text([&] { split_rotary(qkv, split); }),
               "first positions must be empty, or those of 3 sequences without padding; got 2");
  split.first_positions = {5, 0, 19};
  EXPECT_PRED2(test::contains, test::error_text([&] { split_rotary(qkv, split); }),
               "positions must be below the tables' 20; got 19 to 21");
}

TEST(Rotary, ResultsDoNotShareStorage) {
  const at::Tensor qkv = random_tensor({3, 2, 32}, 6, at::kFloat);
  const Qkv got = split_rotary(qkv, {2, 1, 8, rotary_tables(frequencies(8), 3, at::kFloat)});
  for (const at::Tensor& part : {got.q, got.k, got.v}) {
    EXPECT_TRUE(part.is_contiguous());
    EXPECT_EQ(part.storage().nbytes(), part.nbytes());
    EXPECT_FALSE(part.is_alias_of(qkv));
  }
}

TEST(Rotary, PositionsCountFromTheFirstToken) {
  const RotaryTables tables = rotary_tables(frequencies(8), 9, at::kFloat);
  const at::Tensor qkv = random_tensor({9, 3, 32}, 7, at::kFloat);
  const HeadSplit padded{2, 1, 8, tables, 0, {{0, 9}, {4, 9}, {2, 5}}};
  const Qkv got = split_rotary(qkv, padded);
  const at::Tensor back = split_rotary_backward(got, padded);
  for (const auto& [sequence, begin] : {std::pair<int64_t, int64_t>{0, 0}, {1, 4}, {2, 2}}) {
    const at::Tensor tokens = qkv.narrow(1, sequence, 1).narrow(0, begin, 9 - begin);
    const Qkv alone = split_rotary(tokens, {2, 1, 8, tables});
    const auto same_rows = [&](const at::Tensor& heads) {
      return heads.narrow(0, sequence, 1).narrow(2, begin, 9 - begin);
    };
    EXPECT_TRUE(same_bits(same_rows(got.q), alone.q)) << sequence;
    EXPECT_TRUE(same_bits(same_rows(got.k), alone.k)) << sequence;
    EXPECT_LE(relative_error(back.narrow(1, sequence, 1), qkv.narrow(1, sequence, 1)), bound(at::kFloat, 8));
  }
}

TEST(Rotary, AcceptsZeroHeadsAndZeroRows) {
  const RotaryTables tables = rotary_tables(frequencies(8), 3, at::kFloat);
  const HeadSplit no_heads{0, 0, 8, tables};
  const Qkv none = split_rotary(at::zeros({3, 2, 0}), no_heads);
  EXPECT_EQ(none.q.sizes(), at::IntArrayRef({2, 0, 3, 8}));
  EXPECT_EQ(split_rotary_backward(none, no_heads).sizes(), at::IntArrayRef({3, 2, 0}));
  EXPECT_EQ(split_rotary(at::zeros({0, 2, 24}), {1, 1, 8, tables}).q.sizes(), at::IntArrayRef({2, 1, 0, 8}));
}

TEST(Rotary, RejectsMismatchedInputs) {
  const RotaryTables tables = rotary_tables(frequencies(8), 3, at::kFloat);
  const HeadSplit fits{1, 1, 8, tables};
  EXPECT_THROW(split_rotary(at::zeros({4, 2, 24}), fits), c10::ValueError);
  EXPECT_THROW(split_rotary(at::zeros({3, 2, 24}), {1, 1, 8, tables, 1}), c10::ValueError);
  EXPECT_THROW(split_rotary(at::zeros({3, 2, 25}), fits), c10::ValueError);
  EXPECT_THROW(split_rotary(at::zeros({3, 2, 24}, at::kDouble), fits), c10::ValueError);
  EXPECT_THROW(split_rotary(at::zeros({3, 2, 18}), {1, 1, 6, tables}), c10::ValueError);
  EXPECT_THROW(split_rotary(at::zeros({3, 2, 24}), {1, 1, 8, tables, 0, {{0, 3}}}), c10::ValueError);
  EXPECT_THROW(split_rotary(at::zeros({3, 1, 24}), {1, 1, 8, tables, 0, {{2, 4}}}), c10::ValueError);
  EXPECT_THROW(rotary_tables({1.0}, 3, at::kBFloat16), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::rotary_test

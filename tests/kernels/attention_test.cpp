#include "shardwise/kernels/attention.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "tests/kernels/support.h"

namespace shardwise::kernels {
namespace {

struct Case {
  int64_t b, s, d, kv_heads;
  std::vector<int64_t> kv_of_head;
  int64_t heads() const { return static_cast<int64_t>(kv_of_head.size()); }
};

const std::vector<Case> kCases = {{2, 5, 8, 3, {0, 1, 2}},      {1, 33, 6, 2, {0, 0, 0, 1, 1, 1}},
                                  {3, 17, 16, 1, {0, 0, 0, 0}}, {2, 101, 4, 2, {0, 1, 1}},
                                  {2, 9, 8, 2, {0, 0, 1}},      {1, 7, 8, 4, {0, 0, 1, 2, 2, 3}},
                                  {2, 1, 8, 2, {0, 0, 1, 1}},   {1, 6, 2, 3, {0, 2}},
                                  {1, 6, 2, 3, {1, 1}},         {1, 300, 32, 2, {0, 0, 0, 1, 1}}};

struct Reference {
  at::Tensor out, lse;
};

// softmax(q·kᵀ/√d)·v written out, KV heads copied to their query heads.
Reference reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Case& c,
                    bool causal) {
  const at::Tensor kv = at::tensor(c.kv_of_head);
  at::Tensor scores =
      at::matmul(q, k.index_select(1, kv).transpose(2, 3)) / std::sqrt(static_cast<double>(c.d));
  if (causal) {
    const at::Tensor later = at::ones({c.s, c.s}).triu(1).to(at::kBool);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor out = at::matmul(scores.softmax(-1), v.index_select(1, kv));
  return {out.permute({2, 0, 1, 3}).reshape({c.s, c.b, c.heads() * c.d}), at::logsumexp(scores, {-1})};
}

Qkv inputs(const Case& c, at::ScalarType dtype) {
  return {random_tensor({c.b, c.heads(), c.s, c.d}, 1, dtype),
          random_tensor({c.b, c.kv_heads, c.s, c.d}, 2, dtype),
          random_tensor({c.b, c.kv_heads, c.s, c.d}, 3, dtype)};
}

// The fused kernel rounds probabilities and their gradients to the dtype too, and adds blocks in it.
double attention_bound(at::ScalarType dtype) {
  return 8 * roundoff(dtype) + bound(dtype, 64);
}

void check_case(const Case& c, at::ScalarType dtype, bool causal) {
  const Qkv in = inputs(c, dtype);
  const at::Tensor d_out = random_tensor({c.s, c.b, c.heads() * c.d}, 4, dtype);
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const Reference expected = reference(q, k, v, c, causal);
  expected.out.backward(wide(d_out));
  const AttentionResult got = attention(in.q, in.k, in.v, c.kv_of_head, causal);
  const Qkv grads = attention_backward(d_out, in, got.out, got.lse, c.kv_of_head, causal);
  const double limit = attention_bound(dtype);
  EXPECT_LE(relative_error(got.out, expected.out), limit);
  EXPECT_LE((wide(got.lse) - expected.lse).abs().max().item<double>(), 4 * limit);
  if (c.s > 1) {  // one position attends to itself alone: no gradient but rounding
    EXPECT_LE(relative_error(grads.q, q.grad()), limit);
    EXPECT_LE(relative_error(grads.k, k.grad()), limit);
  }
  EXPECT_LE(relative_error(grads.v, v.grad()), limit);
  EXPECT_TRUE(got.out.is_contiguous());
  EXPECT_EQ(got.out.storage().nbytes(), got.out.nbytes());
  EXPECT_EQ(got.lse.storage().nbytes(), got.lse.nbytes());
}

TEST(Attention, EqualsTheFormulaInFp64ForEveryGrouping) {
  const Threads threads(1);
  for (const Case& c : kCases) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype << " s " << c.s << " kv " << at::IntArrayRef(c.kv_of_head) << causal);
        check_case(c, dtype, causal);
      }
    }
  }
}

TEST(Attention, GradientsEqualDifferences) {
  const Case c = {2, 7, 4, 2, {0, 1, 1}};
  const Qkv in = inputs(c, at::kDouble);
  const at::Tensor d_out = random_tensor({7, 2, 12}, 5);
  const auto loss = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return testing::dot(attention(q, k, v, c.kv_of_head, /*causal=*/true).out, d_out);
  };
  const AttentionResult result = attention(in.q, in.k, in.v, c.kv_of_head, /*causal=*/true);
  const Qkv grads = attention_backward(d_out, in, result.out, result.lse, c.kv_of_head, /*causal=*/true);
  expect_gradient([&](const at::Tensor& q) { return loss(q, in.k, in.v); }, in.q, grads.q);
  expect_gradient([&](const at::Tensor& k) { return loss(in.q, k, in.v); }, in.k, grads.k);
  expect_gradient([&](const at::Tensor& v) { return loss(in.q, in.k, v); }, in.v, grads.v);
}

TEST(Attention, AKvHeadWithoutQueriesGetsNoGradient) {
  const Case c = {1, 6, 2, 3, {0, 2}};
  const Qkv in = inputs(c, at::kFloat);
  const AttentionResult result = attention(in.q, in.k, in.v, c.kv_of_head, /*causal=*/true);
  const Qkv grads = attention_backward(result.out, in, result.out, result.lse, c.kv_of_head, /*causal=*/true);
  EXPECT_EQ(grads.k.select(1, 1).abs().sum().item<double>(), 0);
  EXPECT_EQ(grads.v.select(1, 1).abs().sum().item<double>(), 0);
}

TEST(Attention, NoHeadsAndNoRows) {
  for (const auto& [heads, s] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}}) {
    const Qkv in = {at::zeros({2, heads, s, 4}), at::zeros({2, heads, s, 4}), at::zeros({2, heads, s, 4})};
    const std::vector<int64_t> kv_of_head = heads == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{0, 1};
    const AttentionResult result = attention(in.q, in.k, in.v, kv_of_head, /*causal=*/true);
    EXPECT_EQ(result.out.sizes(), at::IntArrayRef({s, 2, heads * 4}));
    EXPECT_EQ(result.lse.sizes(), at::IntArrayRef({2, heads, s}));
    const Qkv grads = attention_backward(result.out, in, result.out, result.lse, kv_of_head, /*causal=*/true);
    EXPECT_EQ(grads.q.sizes(), in.q.sizes());
    EXPECT_EQ(grads.v.sizes(), in.v.sizes());
  }
}

TEST(Attention, AWrongHeadMapIsRefused) {
  const at::Tensor q = at::zeros({1, 2, 3, 4}), k = at::zeros({1, 1, 3, 4});
  EXPECT_THROW(attention(q, k, k, {0}, true), c10::ValueError);
  EXPECT_THROW(attention(q, k, k, {0, 1}, true), c10::ValueError);
  EXPECT_THROW(attention(q, q, q, {1, 0}, true), c10::ValueError);
  EXPECT_THROW(attention(q, k, at::zeros({1, 1, 3, 5}), {0, 0}, true), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels

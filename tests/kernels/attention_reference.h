// Attention by its explicit formula in fp64, and the cases on which tests compare it with the kernel.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/dropout.h"
#include "tests/kernels/support.h"

namespace shardwise::kernels::attention_test {

struct Case {
  int64_t b, s, d, kv_heads;
  std::vector<int64_t> kv_of_head;
  int64_t heads() const { return static_cast<int64_t>(kv_of_head.size()); }
};

inline const std::vector<Case> kCases = {{2, 5, 8, 3, {0, 1, 2}},      {1, 33, 6, 2, {0, 0, 0, 1, 1, 1}},
                                         {3, 17, 16, 1, {0, 0, 0, 0}}, {2, 101, 4, 2, {0, 1, 1}},
                                         {2, 9, 8, 2, {0, 0, 1}},      {1, 7, 8, 4, {0, 0, 1, 2, 2, 3}},
                                         {2, 1, 8, 2, {0, 0, 1, 1}},   {1, 6, 2, 3, {0, 2}},
                                         {1, 6, 2, 3, {1, 1}},         {1, 300, 32, 2, {0, 0, 0, 1, 1}}};

// Valid rows of six sequences of 70: all, padding on the left, on both sides, all but one, two of none.
inline const std::vector<base::Range> kPadded = {{0, 70}, {13, 70}, {5, 69}, {30, 31}, {70, 70}, {0, 0}};

inline AttentionDropout dropout_of(double p, int64_t first_head, int64_t all_heads) {
  return {p, RandomKey::of(7), first_head, all_heads};
}

inline constexpr double kNothing = -std::numeric_limits<double>::infinity();

// The attention mask [b, 1, s, s] from its definition: whether the query of a row attends to the key of a
// column.
inline at::Tensor visible(const Case& c, const AttentionOptions& options) {
  const at::Tensor query = at::arange(c.s).view({-1, 1}), key = at::arange(c.s).view({1, -1});
  at::Tensor attended = at::ones({c.b, 1, c.s, c.s}, at::kBool);
  if (options.causal) attended = attended.logical_and(key.le(query));
  if (options.window) attended = attended.logical_and(key.gt(query - *options.window));
  for (size_t i = 0; i < options.valid.size(); ++i) {
    const auto [begin, end] = options.valid[i];
    const at::Tensor both =
        key.ge(begin).logical_and(key.lt(end)).logical_and(query.ge(begin)).logical_and(query.lt(end));
    attended.select(0, static_cast<int64_t>(i)).logical_and_(both);
  }
  return attended;
}

// The dropout factors of the probabilities, [b, a, s, s]: element (b, head, query, key) of the unsharded
// model's mask, whose rows of keys are padded to 32, counted from each sequence's first token.
inline at::Tensor dropout_factors(const Case& c, const AttentionOptions& options) {
  const AttentionDropout& dropout = options.dropout;
  const at::Tensor ones = at::ones({c.b, dropout.all_heads, c.s, (c.s + 31) / 32 * 32}, at::kDouble);
  const at::Tensor unsharded = kernels::dropout(ones, dropout.p, dropout.key, 0);
  at::Tensor factors = unsharded.narrow(1, dropout.first_head, c.heads()).narrow(3, 0, c.s).clone();
  for (size_t i = 0; i < options.valid.size(); ++i) {
    const int64_t begin = options.valid[i].begin;
    const at::Tensor sequence = factors.select(0, static_cast<int64_t>(i));
    sequence.copy_(sequence.roll({begin, begin}, {1, 2}));
  }
  return factors;
}

struct Reference {
  at::Tensor out, lse;
};

// The explicit formula softmax(q·kᵀ/√d)·v, with KV heads repeated for their query heads.
inline Reference reference(const Qkv& in, const Case& c, const AttentionOptions& options) {
  const at::Tensor kv = at::tensor(c.kv_of_head), attended = visible(c, options);
  const at::Tensor scores =
      at::matmul(in.q, in.k.index_select(1, kv).transpose(2, 3)) / std::sqrt(static_cast<double>(c.d));
  const at::Tensor any = attended.any(-1, /*keepdim=*/true);
  // Fully masked rows have scores of 0 here and zero probabilities below.
  const at::Tensor masked =
      at::where(any, scores.masked_fill(attended.logical_not(), kNothing), at::zeros_like(scores));
  at::Tensor weights = at::where(any, masked.softmax(-1), at::zeros_like(scores));
  if (options.dropout.p > 0) weights = weights * dropout_factors(c, options);
  const at::Tensor out = at::matmul(weights, in.v.index_select(1, kv));
  const at::Tensor lse =
      at::where(any.squeeze(-1), masked.logsumexp(-1), at::zeros_like(masked.select(-1, 0)));
  return {out.permute({2, 0, 1, 3}).reshape({c.s, c.b, c.heads() * c.d}), lse};
}

inline Qkv inputs(const Case& c, at::ScalarType dtype) {
  return {random_tensor({c.b, c.heads(), c.s, c.d}, 1, dtype),
          random_tensor({c.b, c.kv_heads, c.s, c.d}, 2, dtype),
          random_tensor({c.b, c.kv_heads, c.s, c.d}, 3, dtype)};
}

inline AttentionOptions causal_of(const Case& c) {
  return {.kv_of_head = c.kv_of_head};
}

// ATen's fused kernel also rounds probabilities and their gradients to the dtype, and adds blocks in it.
inline double attention_bound(at::ScalarType dtype) {
  return 8 * roundoff(dtype) + bound(dtype, 64);
}

/// An implementation of attention.
struct Implementation {
  AttentionResult (*forward)(const Qkv& qkv, const AttentionOptions& options);
  Qkv (*backward)(const at::Tensor& d_out, const Qkv& qkv, const AttentionResult& forward,
                  const AttentionOptions& options);
};
inline constexpr Implementation kKernel = {attention, attention_backward};

inline void check_case(const Case& c, at::ScalarType dtype, const AttentionOptions& options,
                       const Implementation& tested = kKernel) {
  const Qkv in = inputs(c, dtype);
  const at::Tensor d_out = random_tensor({c.s, c.b, c.heads() * c.d}, 4, dtype);
  const Qkv leaves = {leaf(in.q), leaf(in.k), leaf(in.v)};
  const Reference expected = reference(leaves, c, options);
  expected.out.backward(wide(d_out));
  const AttentionResult got = tested.forward(in, options);
  const Qkv grads = tested.backward(d_out, in, got, options);
  const double limit = attention_bound(dtype);
  EXPECT_LE(relative_error(got.out, expected.out), limit);
  EXPECT_LE((wide(got.lse) - expected.lse).abs().max().item<double>(), 4 * limit);
  EXPECT_LE(relative_error(grads.v, leaves.v.grad()), limit);
  if (c.s == 1 ||
      options.window == 1) {  // a position that attends only to itself has a zero gradient up to rounding
    EXPECT_LE(wide(grads.q).norm().item<double>(), limit * wide(d_out).norm().item<double>());
    EXPECT_LE(wide(grads.k).norm().item<double>(), limit * wide(d_out).norm().item<double>());
  } else {
    EXPECT_LE(relative_error(grads.q, leaves.q.grad()), limit);
    EXPECT_LE(relative_error(grads.k, leaves.k.grad()), limit);
  }
  EXPECT_TRUE(got.out.is_contiguous());
  EXPECT_EQ(got.out.storage().nbytes(), got.out.nbytes());
  EXPECT_EQ(got.lse.storage().nbytes(), got.lse.nbytes());
}

/// Checks the shapes of results without heads or rows, with KV heads that no query head uses.
inline void check_zero_heads_and_rows(const Implementation& tested) {
  for (const auto& [heads, s] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}}) {
    const Qkv in = {at::zeros({2, heads, s, 4}), at::zeros({2, 2, s, 4}), at::zeros({2, 2, s, 4})};
    const std::vector<int64_t> kv_of_head = heads == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{0, 1};
    for (const std::optional<int64_t>& window : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
      const AttentionOptions options = {
          .kv_of_head = kv_of_head, .window = window, .dropout = dropout_of(0.1, 0, heads)};
      const AttentionResult result = tested.forward(in, options);
      EXPECT_EQ(result.out.sizes(), at::IntArrayRef({s, 2, heads * 4}));
      EXPECT_EQ(result.lse.sizes(), at::IntArrayRef({2, heads, s}));
      const Qkv grads = tested.backward(result.out, in, result, options);
      EXPECT_EQ(grads.q.sizes(), in.q.sizes());
      EXPECT_EQ(grads.v.sizes(), in.v.sizes());
      EXPECT_FALSE(grads.v.any().item<bool>());
    }
  }
}

}  // namespace shardwise::kernels::attention_test

#include "shardwise/nn/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;

constexpr int64_t kSequenceLength = 5, kHeadDim = 4;

HeadLayout layout(int64_t query_heads, int64_t kv_heads, int ranks, int rank) {
  const Split query = Split::even("heads", query_heads, ranks);
  return HeadLayout::of(query, Split::kv_heads_of(query, kv_heads), kHeadDim, rank);
}

using Heads = std::vector<int64_t>;

TEST(HeadLayout, GivesEachRankTheKvHeadsOfItsQueryHeads) {
  const HeadLayout whole = layout(6, 3, 1, 0);
  EXPECT_EQ(whole.heads, 6);
  EXPECT_EQ(whole.kv_of_head, (Heads{0, 0, 1, 1, 2, 2}));
  // Query heads 0–2 need KV heads 0, 1; query heads 3–5 need 1, 2: the second holds head 1 again, as its
  // first.
  EXPECT_EQ(layout(6, 3, 2, 0).kv_of_head, (Heads{0, 0, 1}));
  EXPECT_EQ(layout(6, 3, 2, 1).kv_of_head, (Heads{0, 1, 1}));
  EXPECT_EQ(layout(6, 3, 2, 1).kv_heads, 2);
  EXPECT_EQ(layout(6, 3, 4, 1).kv_of_head, (Heads{0, 0}));  // heads 2, 3
  EXPECT_EQ(layout(6, 3, 4, 3).kv_of_head, (Heads{0}));     // head 5
  EXPECT_EQ(layout(5, 1, 3, 2).kv_of_head, (Heads{0}));     // MQA: one KV head for all
  EXPECT_EQ(layout(4, 4, 2, 1).kv_of_head, (Heads{0, 1}));  // MHA: one each
  EXPECT_EQ(layout(4, 4, 2, 1).head_dim, kHeadDim);
}

CausalSelfAttention attention(const HeadLayout& heads) {
  return {heads, std::make_shared<Rotary>(std::vector<double>{1.0, 0.1})};
}

struct Counts {
  int64_t query, kv;
};

// The features of q|k|v and of the result, cut by heads.
ShardRule qkv_rule(const Counts& counts, int ranks) {
  const Split query = Split::even("heads", counts.query, ranks), kv = Split::kv_heads_of(query, counts.kv);
  return {2, {{query, kHeadDim}, {kv, kHeadDim}, {kv, kHeadDim}}};
}

struct Result {
  Tensor y, d_qkv;
};

Result run(const HeadLayout& heads, const Tensor& qkv, const Tensor& dy) {
  const Tensor leaf = qkv.clone().requires_grad_();
  const Tensor y = attention(heads)(Placed<Sharded<kFeature>>(leaf), Step(Group(), kSequenceLength)).local();
  y.backward(dy);
  EXPECT_TRUE(testing::same_bits(leaf.detach(), qkv)) << "the input was changed";
  return {y.detach(), leaf.grad()};
}

// Adds the ranks' gradients of q|k|v up: KV heads that several ranks hold get a term from each.
Tensor summed(const std::vector<Tensor>& gradients, const Counts& counts) {
  const int ranks = static_cast<int>(gradients.size());
  Tensor sum = random_tensor({kSequenceLength, 2, (counts.query + 2 * counts.kv) * kHeadDim}, 0) * 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& piece : qkv_rule(counts, ranks).pieces(rank)) {
      sum.narrow(2, piece.global_begin, piece.size)
          .add_(gradients[rank].narrow(2, piece.local_begin, piece.size));
    }
  }
  return sum;
}

TEST(CausalSelfAttention, OfEachRanksHeadsIsThatOfTheUnshardedOnes) {
  for (const Counts& counts : {Counts{4, 4}, {4, 2}, {5, 1}, {6, 3}, {8, 4}}) {
    const Tensor qkv = random_tensor({kSequenceLength, 2, (counts.query + 2 * counts.kv) * kHeadDim}, 1);
    const Tensor dy = random_tensor({kSequenceLength, 2, counts.query * kHeadDim}, 2);
    const Result whole = run(layout(counts.query, counts.kv, 1, 0), qkv, dy);
    for (const int ranks : {2, 3, 4}) {
      std::vector<Tensor> outputs, gradients;
      for (int rank = 0; rank < ranks; ++rank) {
        const Split features = Split::even("features", counts.query * kHeadDim, ranks, kHeadDim);
        const Result own = run(layout(counts.query, counts.kv, ranks, rank),
                               slice_of(qkv, qkv_rule(counts, ranks), rank), slice_of(dy, features, 2, rank));
        outputs.push_back(own.y);
        gradients.push_back(own.d_qkv);
      }
      EXPECT_LE(relative_error(at::cat(outputs, 2), whole.y), 1e-14) << counts.query << "/" << counts.kv;
      EXPECT_LE(relative_error(summed(gradients, counts), whole.d_qkv), 1e-14)
          << counts.query << "/" << counts.kv;
    }
  }
}

TEST(CausalSelfAttention, DoesNotLookAhead) {
  const HeadLayout heads = layout(4, 2, 1, 0);
  const Tensor qkv = random_tensor({kSequenceLength, 2, 8 * kHeadDim}, 1);
  Tensor changed = qkv.clone();
  changed.narrow(0, 3, 2).add_(1);
  const auto first_rows = [&](const Tensor& input) {
    const at::NoGradGuard no_grad;
    return attention(heads)(Placed<Sharded<kFeature>>(input), Step(Group(), kSequenceLength))
        .local()
        .narrow(0, 0, 3);
  };
  EXPECT_LE(relative_error(first_rows(changed), first_rows(qkv)), 1e-15);
}

TEST(CausalSelfAttention, OfEqualValuesIsThatValue) {
  const HeadLayout heads = layout(1, 1, 1, 0);
  const Tensor row = random_tensor({1, 1, 3 * kHeadDim}, 1);
  const at::NoGradGuard no_grad;
  const Tensor y =
      attention(heads)(Placed<Sharded<kFeature>>(row.expand({kSequenceLength, 1, -1}).contiguous()),
                       Step(Group(), kSequenceLength))
          .local();
  const Tensor value = row.narrow(2, 2 * kHeadDim, kHeadDim);
  EXPECT_LE(relative_error(y, value.expand_as(y)), 1e-15) << "values must not be rotated";
}

TEST(CausalSelfAttention, WithoutGradientsMakesNoNode) {
  const at::NoGradGuard no_grad;
  const Tensor qkv = random_tensor({kSequenceLength, 2, 8 * kHeadDim}, 1).requires_grad_();
  const Tensor y =
      attention(layout(4, 2, 1, 0))(Placed<Sharded<kFeature>>(qkv), Step(Group(), kSequenceLength)).local();
  EXPECT_FALSE(y.requires_grad());
}

}  // namespace
}  // namespace shardwise::nn

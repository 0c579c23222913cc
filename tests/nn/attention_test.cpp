#include "shardwise/nn/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "shardwise/base/memory_counter.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::attention_test {
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

TEST(HeadLayout, AssignsEachRankTheKvHeadsOfItsQueryHeads) {
  const HeadLayout full = layout(6, 3, 1, 0);
  EXPECT_EQ(full.heads, 6);
  EXPECT_EQ(full.kv_of_head, (Heads{0, 0, 1, 1, 2, 2}));
  // Query heads 0–2 need KV heads 0 and 1, query heads 3–5 need 1 and 2: rank 1 also holds KV head 1, as its
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

CausalSelfAttention attention(const HeadLayout& heads, SelfAttentionOptions options = {}) {
  return {heads, std::make_shared<Rotary>(std::vector<double>{1.0, 0.1}), std::move(options)};
}

struct Counts {
  int64_t query, kv;
};
const std::vector<Counts> kCounts = {{4, 4}, {4, 2}, {5, 1}, {6, 3}, {8, 4}};

std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.query << " query heads, " << counts.kv << " KV heads";
}

// The features of q|k|v and of the output, sharded by heads.
ShardRule qkv_rule(const Counts& counts, int ranks) {
  const Split query = Split::even("heads", counts.query, ranks), kv = Split::kv_heads_of(query, counts.kv);
  return {2, {{query, kHeadDim}, {kv, kHeadDim}, {kv, kHeadDim}}};
}

// The options of attention that a test sets.
struct Asked {
  std::optional<int64_t> window = {};
  bool has_norm = false;
  std::vector<base::Range> valid = {};
  double dropout = 0;
  int64_t s = kSequenceLength;

  Step step(const Group& group = {}) const {
    Step step(group, s, kernels::RandomKey::of(3));
    step.valid = valid;
    step.attention_dropout = dropout;
    return step;
  }
};

// Weights different from 1, equal on every rank, with zeroed gradients.
QkNorm norm_for(const Group& group) {
  const QkNorm norm = QkNorm::make("attn", kHeadDim, 1e-6, group, at::kDouble);
  const at::NoGradGuard no_grad;
  norm.q->value.copy_(random_tensor({kHeadDim}, 5) + 1);
  norm.k->value.copy_(random_tensor({kHeadDim}, 6) + 1);
  for (const auto& weight : {norm.q, norm.k}) parallel::zero_grad_(*weight);
  return norm;
}

struct Result {
  Tensor y, d_qkv;
  std::vector<Tensor> d_norm;
};

Result run(const HeadLayout& heads, const Tensor& qkv, const Tensor& dy, const Asked& asked) {
  const Tensor leaf = qkv.clone().requires_grad_();
  SelfAttentionOptions options{.window = asked.window, .layer = 1};
  if (asked.has_norm) options.norm = norm_for(Group());
  const Tensor y = attention(heads, options)(Placed<Sharded<kFeature>>(leaf), asked.step()).local();
  y.backward(dy);
  EXPECT_TRUE(testing::same_bits(leaf.detach(), qkv)) << "the input was changed";
  Result result{y.detach(), leaf.grad(), {}};
  if (asked.has_norm) result.d_norm = {options.norm->q->main_grad, options.norm->k->main_grad};
  return result;
}

// Sums the ranks' gradients of q|k|v; ranks that hold the same KV head contribute partial gradients.
Tensor summed(const std::vector<Tensor>& gradients, const Counts& counts) {
  const int ranks = static_cast<int>(gradients.size());
  Tensor sum = random_tensor({gradients[0].size(0), 2, (counts.query + 2 * counts.kv) * kHeadDim}, 0) * 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& piece : qkv_rule(counts, ranks).pieces(rank)) {
      sum.narrow(2, piece.global_begin, piece.size)
          .add_(gradients[rank].narrow(2, piece.local_begin, piece.size));
    }
  }
  return sum;
}

// Rotates x [s, b, heads, d] by the positions [s, b], with the frequencies of attention().
Tensor rotated(const Tensor& x, const Tensor& positions) {
  const Tensor angles = positions.unsqueeze(-1) * at::tensor({1.0, 0.1}, at::kDouble);
  const Tensor both = at::cat({angles, angles}, -1).unsqueeze(2);
  const std::vector<Tensor> halves = x.chunk(2, -1);
  return x * both.cos() + at::cat({-halves[1], halves[0]}, -1) * both.sin();
}

// Returns whether query i of sequence b attends to key j, [b, 1, i, j].
Tensor visible(const Asked& asked) {
  const Tensor i = at::arange(asked.s).unsqueeze(1), j = at::arange(asked.s);
  Tensor seen = (j <= i) & (j > i - asked.window.value_or(asked.s));
  seen = seen.repeat({2, 1, 1, 1});
  for (size_t b = 0; b < asked.valid.size(); ++b) {
    const auto [begin, end] = asked.valid[b];
    seen[int64_t(b)] &= (i >= begin) & (i < end) & (j >= begin) & (j < end);
  }
  return seen;
}

// Attention by its formula; of padding it returns zeros. Without dropout and norm.
Tensor by_formula(const Tensor& qkv, const Counts& counts, const Asked& asked) {
  Tensor positions = at::arange(asked.s, at::kDouble).unsqueeze(1).repeat({1, 2});
  for (size_t b = 0; b < asked.valid.size(); ++b) positions.select(1, int64_t(b)) -= asked.valid[b].begin;
  const Tensor x = qkv.unflatten(2, {-1, kHeadDim});
  const Tensor q = rotated(x.narrow(2, 0, counts.query), positions).permute({1, 2, 0, 3});
  const auto of_query_heads = [&](const Tensor& kv) {
    return kv.repeat_interleave(counts.query / counts.kv, 2).permute({1, 2, 0, 3});
  };
  const Tensor k = of_query_heads(rotated(x.narrow(2, counts.query, counts.kv), positions));
  const Tensor v = of_query_heads(x.narrow(2, counts.query + counts.kv, counts.kv));
  const Tensor hidden = visible(asked).logical_not();
  const Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(double{kHeadDim});
  const Tensor p = scores.masked_fill(hidden, -1e300).softmax(3).masked_fill(hidden, 0);
  return p.matmul(v).permute({2, 0, 1, 3}).flatten(2, 3);
}

void expect_formula(const Result& result, const Tensor& qkv, const Tensor& dy, const Counts& counts,
                    const Asked& asked) {
  const Tensor leaf = qkv.clone().requires_grad_();
  const Tensor y = by_formula(leaf, counts, asked);
  y.backward(dy);
  EXPECT_LE(relative_error(result.y, y.detach()), 1e-13);  // sums of up to 150 terms, in another order
  EXPECT_LE(relative_error(result.d_qkv, leaf.grad()), 1e-13);
}

// Checks that the ranks' heads and gradients together equal those of a group of one, and these the formula's.
void check_over_ranks(const Counts& counts, int ranks, const Asked& asked) {
  SCOPED_TRACE(::testing::Message() << counts << ", " << ranks << " ranks");
  const Tensor qkv = random_tensor({asked.s, 2, (counts.query + 2 * counts.kv) * kHeadDim}, 1);
  const Tensor dy = random_tensor({asked.s, 2, counts.query * kHeadDim}, 2);
  const Result full = run(layout(counts.query, counts.kv, 1, 0), qkv, dy, asked);
  if (asked.dropout == 0 && !asked.has_norm) expect_formula(full, qkv, dy, counts, asked);
  std::vector<Tensor> outputs, gradients;
  for (int rank = 0; rank < ranks; ++rank) {
    const Split features = Split::even("features", counts.query * kHeadDim, ranks, kHeadDim);
    const Result local =
        run(layout(counts.query, counts.kv, ranks, rank), slice_of(qkv, qkv_rule(counts, ranks), rank),
            slice_of(dy, features, 2, rank), asked);
    outputs.push_back(local.y);
    gradients.push_back(local.d_qkv);
  }
  EXPECT_LE(relative_error(at::cat(outputs, 2), full.y), 1e-14);
  EXPECT_LE(relative_error(summed(gradients, counts), full.d_qkv), 1e-14);
}

void check_over_all_ranks(const Asked& asked) {
  for (const Counts& counts : kCounts) {
    for (const int ranks : {1, 2, 3, 4}) check_over_ranks(counts, ranks, asked);
  }
}

TEST(CausalSelfAttention, ShardedHeadsEqualUnshardedHeads) {
  check_over_all_ranks({});
}

TEST(CausalSelfAttention, WithAWindowShardedHeadsEqualUnshardedHeads) {
  check_over_all_ranks({.window = 2});
  check_over_all_ranks({.window = 70, .s = 150});
}

TEST(CausalSelfAttention, WithPaddingShardedHeadsEqualUnshardedHeads) {
  check_over_all_ranks({.valid = {{2, 5}, {0, 4}}});
  check_over_all_ranks({.valid = {{0, 0}, {1, 2}}});
}

TEST(CausalSelfAttention, WithDropoutShardedHeadsEqualUnshardedHeads) {
  check_over_all_ranks({.dropout = 0.4});
  check_over_all_ranks({.window = 70, .valid = {{3, 150}, {0, 131}}, .dropout = 0.1, .s = 150});
}

// Returns the bytes that the graph saves besides the output. Only the graph references the input.
int64_t saved_bytes(const Asked& asked, at::ScalarType dtype) {
  SelfAttentionOptions options{.window = asked.window, .layer = 0};
  if (asked.has_norm) options.norm = QkNorm::make("attn", kHeadDim, 1e-6, Group(), dtype);
  const CausalSelfAttention attend = attention(layout(6, 3, 1, 0), options);
  const Tensor leaf = random_tensor({asked.s, 2, 12 * kHeadDim}, 1, dtype).requires_grad_();
  Tensor y;
  for (int i = 0; i < 2; ++i)  // the first fills the rotary tables
    y = attend(Placed<Sharded<kFeature>>(leaf.clone()), asked.step()).local();
  const int64_t before = base::live_bytes(), local = static_cast<int64_t>(y.nbytes());
  y.reset();
  return before - base::live_bytes() - local;
}

TEST(CausalSelfAttention, SavesOnlyHeadsOutputAndLogSumExp) {
  base::install_memory_counter();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const int64_t e = static_cast<int64_t>(c10::elementSize(dtype)), e4 = dtype == at::kDouble ? 8 : 4;
    const int64_t tokens = kSequenceLength * 2, heads = 12 * kHeadDim * e, lse = 6 * e4;
    for (const Asked& asked :
         std::vector<Asked>{{},
                            {.has_norm = true},
                            {.window = 2},
                            {.valid = {{1, 5}, {0, 2}}},
                            {.dropout = 0.3},
                            {.window = 2, .has_norm = true, .valid = {{0, 3}, {2, 5}}, .dropout = 0.3}}) {
      EXPECT_EQ(saved_bytes(asked, dtype), tokens * (heads + lse)) << dtype;
    }
  }
}

TEST(CausalSelfAttention, DoesNotAttendToLaterTokens) {
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

TEST(CausalSelfAttention, EqualValuesGiveThatValue) {
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

TEST(CausalSelfAttention, RecordsNoNodeWithoutGradients) {
  const at::NoGradGuard no_grad;
  const Tensor qkv = random_tensor({kSequenceLength, 2, 8 * kHeadDim}, 1).requires_grad_();
  const Tensor y =
      attention(layout(4, 2, 1, 0))(Placed<Sharded<kFeature>>(qkv), Step(Group(), kSequenceLength)).local();
  EXPECT_FALSE(y.requires_grad());
}

// RMSNorm over each of `count` heads from `first` on, by ATen's operators.
Tensor normalized(const Tensor& qkv, int64_t first, int64_t count, const Tensor& weight, double eps) {
  const Tensor x = qkv.narrow(2, first * kHeadDim, count * kHeadDim).unflatten(2, {count, kHeadDim});
  return (x * (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt() * weight).flatten(2, 3);
}

// Compares with the norm followed by attention without a norm; other tests check that one's gradients.
TEST(CausalSelfAttention, AppliesQkNormBeforeRotary) {
  const Asked asked{.has_norm = true};
  const QkNorm norm = norm_for(Group());
  const Tensor qkv = random_tensor({kSequenceLength, 2, 8 * kHeadDim}, 1).requires_grad_();
  const Tensor q_weight = norm.q->value.detach().clone().requires_grad_();
  const Tensor k_weight = norm.k->value.detach().clone().requires_grad_();
  const Tensor by_hand =
      at::cat({normalized(qkv, 0, 4, q_weight, norm.eps), normalized(qkv, 4, 2, k_weight, norm.eps),
               qkv.narrow(2, 6 * kHeadDim, 2 * kHeadDim)},
              2);
  const HeadLayout heads = layout(4, 2, 1, 0);
  const Tensor expected = attention(heads)(Placed<Sharded<kFeature>>(by_hand), Asked().step()).local();
  const Tensor dy = random_tensor({kSequenceLength, 2, 4 * kHeadDim}, 2);
  expected.backward(dy);
  const Result got = run(heads, qkv.detach(), dy, asked);
  EXPECT_LE(relative_error(got.y, expected), 1e-14);
  EXPECT_LE(relative_error(got.d_qkv, qkv.grad()), 1e-13);
  EXPECT_LE(relative_error(got.d_norm.at(0), q_weight.grad()), 1e-13);
  EXPECT_LE(relative_error(got.d_norm.at(1), k_weight.grad()), 1e-13);
}

// Each rank applies the full weights to its heads, so their gradients, summed over the ranks, equal the
// unsharded model's, and the gradient norm counts them once.
TEST(CausalSelfAttention, QkNormGradientsArePartialAndSynchronized) {
  const Asked asked{.window = 3, .has_norm = true, .valid = {{0, 5}, {1, 4}}, .dropout = 0.2};
  for (const Counts& counts : kCounts) {
    const Tensor qkv = random_tensor({kSequenceLength, 2, (counts.query + 2 * counts.kv) * kHeadDim}, 1);
    const Tensor dy = random_tensor({kSequenceLength, 2, counts.query * kHeadDim}, 2);
    const Result full = run(layout(counts.query, counts.kv, 1, 0), qkv, dy, asked);
    const double norm = at::cat(full.d_norm).norm().item<double>();
    for (const int ranks : {1, 2, 3, 4}) {
      check_over_ranks(counts, ranks, asked);
      testing::on_ranks(ranks, [&](const Group& group) {
        const SelfAttentionOptions options{.norm = norm_for(group), .window = asked.window, .layer = 1};
        const auto local = attention(layout(counts.query, counts.kv, ranks, group.rank()), options);
        const Split features = Split::even("features", counts.query * kHeadDim, ranks, kHeadDim);
        const Tensor x = slice_of(qkv, qkv_rule(counts, ranks), group.rank()).requires_grad_();
        local(Placed<Sharded<kFeature>>(x), asked.step(group))
            .local()
            .backward(slice_of(dy, features, 2, group.rank()));
        UsedParameters parameters;
        local.append_parameters(parameters);
        const parallel::ParamSpecs specs = specs_of<Invariant>(parameters);
        parallel::sync_gradients_(specs, group);
        EXPECT_LE(relative_error(options.norm->q->main_grad, full.d_norm[0]), 1e-13) << counts;
        EXPECT_LE(relative_error(options.norm->k->main_grad, full.d_norm[1]), 1e-13) << counts;
        EXPECT_NEAR(parallel::gradient_norm(specs, parallel::NormOrder::two, group), norm, 1e-13 * norm);
      });
    }
  }
}

TEST(CausalSelfAttention, QkNormTrainsAboveFrozenHeads) {
  const QkNorm norm = norm_for(Group());
  const Tensor qkv = random_tensor({kSequenceLength, 2, 8 * kHeadDim}, 1);
  const Tensor y =
      attention(layout(4, 2, 1, 0), {.norm = norm})(Placed<Sharded<kFeature>>(qkv), Asked().step()).local();
  y.sum().backward();
  EXPECT_GT(norm.q->main_grad.norm().item<double>(), 0);
  EXPECT_GT(norm.k->main_grad.norm().item<double>(), 0);
}

Tensor output(const SelfAttentionOptions& options, const Tensor& qkv, const Step& step) {
  const at::NoGradGuard no_grad;
  return attention(layout(4, 2, 1, 0), options)(Placed<Sharded<kFeature>>(qkv), step).local();
}

// Left padding only shifts a sequence, because positions count from its first token.
TEST(CausalSelfAttention, PaddingDoesNotChangeASequence) {
  const Tensor qkv = random_tensor({9, 2, 8 * kHeadDim}, 1);
  const Tensor y = output({}, qkv, Asked{.valid = {{4, 9}, {0, 7}}, .s = 9}.step());
  const Tensor left = output({}, qkv.narrow(1, 0, 1).narrow(0, 4, 5), Asked{.s = 5}.step());
  const Tensor right = output({}, qkv.narrow(1, 1, 1).narrow(0, 0, 7), Asked{.s = 7}.step());
  EXPECT_TRUE(testing::same_bits(y.narrow(1, 0, 1).narrow(0, 4, 5), left));
  EXPECT_TRUE(testing::same_bits(y.narrow(1, 1, 1).narrow(0, 0, 7), right));
  EXPECT_EQ(y.narrow(1, 0, 1).narrow(0, 0, 4).abs().sum().item<double>(), 0);
}

TEST(CausalSelfAttention, DropoutDiffersBySeedStepAndLayer) {
  const Tensor qkv = random_tensor({kSequenceLength, 2, 8 * kHeadDim}, 1);
  const Asked asked{.dropout = 0.5};
  Step other = asked.step();
  other.key = kernels::RandomKey::of(4);
  const Tensor y = output({.layer = 1}, qkv, asked.step());
  EXPECT_TRUE(testing::same_bits(output({.layer = 1}, qkv, asked.step()), y));
  EXPECT_GT(relative_error(output({.layer = 2}, qkv, asked.step()), y), 0.1);
  EXPECT_GT(relative_error(output({.layer = 1}, qkv, other), y), 0.1);
  EXPECT_THROW(output({}, qkv, asked.step()), c10::ValueError) << "without a layer, layers would share masks";
}

}  // namespace
}  // namespace shardwise::nn::attention_test

#include "shardwise/nn/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::loss_test {
namespace {

using at::Tensor;
using base::Split;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;

constexpr int64_t kSequenceLength = 5;
constexpr double kValidTokens = 11;  // more than this micro-batch has

Tensor labels(int64_t vocab) {
  return at::tensor({0, 1, -100, 16, 3, 5, 16, -100, 0, 8}, at::kLong)
      .view({kSequenceLength, 2})
      .clamp_max(vocab - 1);
}

LossOptions options(double label_smoothing, double z_loss) {
  LossOptions options(kValidTokens);
  options.label_smoothing = label_smoothing;
  options.z_loss = z_loss;
  return options;
}

// The reference: ATen over the full vocabulary.
Tensor formula(const Tensor& logits, const Tensor& label, const LossOptions& o = kValidTokens) {
  const Tensor rows = logits.flatten(0, 1), labels = label.flatten();
  const Tensor cross_entropy =
      at::cross_entropy_loss(rows, labels, /*weight=*/{}, at::Reduction::Sum, -100, o.label_smoothing);
  const Tensor lse = at::logsumexp(rows, {-1}).masked_fill(labels.eq(-100), 0);
  return (cross_entropy + lse.square().sum() * o.z_loss) / kValidTokens;
}

Tensor loss(const Tensor& shard, const Tensor& label, const Split& vocab, const Group& group,
            const LossOptions& options = kValidTokens) {
  return cross_entropy(Placed<Sharded<kFeature>>(shard), label, vocab, options, Step(group, kSequenceLength))
      .local();
}

struct Case {
  double logits_scale, bound;
  LossOptions options = kValidTokens;
};

// Runs on 1 to 4 ranks with vocabularies that divide evenly, do not, and leave ranks without a column.
void check(const Case& c, const std::function<Tensor(int64_t vocab)>& label_of) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      for (const int64_t vocab_size : {127, 17, 12, 2}) {
        const Tensor full =
            (random_tensor({kSequenceLength, 2, vocab_size}, 1) * c.logits_scale).requires_grad_();
        const Tensor expected = formula(full, label_of(vocab_size), c.options);
        (expected * 3).backward();
        const Split vocab = Split::even("vocab", vocab_size, ranks);
        const Tensor shard = slice_of(full.detach(), vocab, -1, group.rank()).requires_grad_();
        const Tensor actual = loss(shard, label_of(vocab_size), vocab, group, c.options);
        (actual * 3).backward();
        EXPECT_LE(relative_error(actual, expected), c.bound) << vocab_size << " over " << ranks;
        EXPECT_LE(relative_error(shard.grad(), slice_of(full.grad(), vocab, -1, group.rank())), c.bound);
      }
    });
  }
}

TEST(CrossEntropy, EqualsLogSoftmaxOverTheFullVocabulary) {
  check({/*logits_scale=*/1, /*bound=*/1e-14}, labels);
}

TEST(CrossEntropy, IsAccurateIfExpOfTheLogitsOverflows) {
  check({1000, 1e-13}, labels);
}

// A rank whose classes are all impossible has no finite maximum.
TEST(CrossEntropy, ShardOfImpossibleClassesContributesNothing) {
  testing::on_ranks(2, [](const Group& group) {
    const Split vocab = Split::even("vocab", 12, 2);
    Tensor full = random_tensor({kSequenceLength, 2, 12}, 1) - 500;
    full.narrow(-1, 6, 6).fill_(-INFINITY);
    full.requires_grad_();
    const Tensor label = labels(6), expected = formula(full, label);
    expected.backward();
    const Tensor shard = slice_of(full.detach(), vocab, -1, group.rank()).requires_grad_();
    const Tensor actual = loss(shard, label, vocab, group);
    actual.backward();
    EXPECT_LE(relative_error(actual, expected), 1e-14);
    EXPECT_LE(relative_error(shard.grad(), slice_of(full.grad(), vocab, -1, group.rank())), 1e-14);
  });
}

TEST(CrossEntropy, SmoothsLabelsOverTheFullVocabulary) {
  for (const double smoothing : {0.1, 1.0}) check({1, 1e-14, options(smoothing, 0)}, labels);
  check({1000, 1e-13, options(0.1, 0)}, labels);
}

TEST(CrossEntropy, AddsTheZLoss) {
  check({1, 1e-14, options(0, 1e-2)}, labels);
  check({1000, 1e-13, options(0, 1e-4)}, labels);
}

TEST(CrossEntropy, CombinesLabelSmoothingAndZLoss) {
  check({1, 1e-14, options(0.3, 0.5)}, labels);
}

TEST(CrossEntropy, IgnoredLabelsGiveZeroWithoutGradient) {
  check({1, 0, options(0.1, 0.1)}, [](int64_t) { return at::full({kSequenceLength, 2}, -100, at::kLong); });
}

TEST(CrossEntropy, EqualLogitsGiveTheLogarithmOfTheVocabulary) {
  testing::on_ranks(3, [](const Group& group) {
    const Split vocab = Split::even("vocab", 17, 3);
    const Tensor shard = at::full({1, 1, vocab.range(group.rank()).size()}, 2.5, at::kDouble);
    const Tensor label = at::tensor({12}, at::kLong).view({1, 1});
    const Tensor value =
        cross_entropy(Placed<Sharded<kFeature>>(shard), label, vocab, 1, Step(group, 1)).local();
    EXPECT_NEAR(value.item<double>(), std::log(17), 1e-15);
  });
}

// `numbers`: gathered values per token.
void check_collectives(const LossOptions& options, int64_t numbers) {
  testing::on_ranks(4, [&](const Group& group) {
    const Split vocab = Split::even("vocab", 17, 4);
    const Tensor shard =
        slice_of(random_tensor({kSequenceLength, 2, 17}, 1), vocab, -1, group.rank()).requires_grad_();
    const comm::Counters before = group.counters();
    const Tensor local = loss(shard, labels(17), vocab, group, options);
    const comm::Counters used = group.counters() - before;
    EXPECT_EQ(used[Op::all_gather].calls, 1);
    EXPECT_EQ(used.total().calls, 1);
    EXPECT_EQ(used.total().bytes, 3 * numbers * kSequenceLength * 2 * 8);
    const comm::Counters before_backward = group.counters();
    local.backward();
    EXPECT_EQ((group.counters() - before_backward).total().calls, 0);
    Tensor first = local.detach().clone();
    group.broadcast_(first, 0);
    EXPECT_TRUE(testing::same_bits(local.detach(), first));
  });
}

TEST(CrossEntropy, IsBitIdenticalOnEveryRankAndTakesOneAllGather) {
  check_collectives(kValidTokens, /*numbers=*/3);
  check_collectives(options(0, 0.1), 3);
  check_collectives(options(0.1, 0.1), 4);
}

TEST(CrossEntropy, MicroBatchesAddUpToTheStepsMean) {
  const Split vocab = Split::unsharded("vocab", 17);
  const Tensor logits = random_tensor({kSequenceLength, 2, 17}, 1), label = labels(17);
  const Step step(Group(), kSequenceLength);
  const auto mean = [&](int64_t column, int64_t columns) {
    const Tensor some = logits.narrow(1, column, columns).contiguous();
    return cross_entropy(Placed<Sharded<kFeature>>(some), label.narrow(1, column, columns), vocab, 8, step)
        .local()
        .item<double>();
  };
  EXPECT_NEAR(mean(0, 1) + mean(1, 1), mean(0, 2), 1e-15);
}

TEST(CrossEntropy, RejectsLabelsOutsideTheVocabulary) {
  const Split vocab = Split::unsharded("vocab", 17);
  const Tensor logits = random_tensor({1, 1, 17}, 1);
  for (const int64_t bad : {17, -1, -101}) {
    const Tensor label = at::tensor({bad}, at::kLong).view({1, 1});
    EXPECT_THROW(loss(logits, label, vocab, Group()), c10::ValueError) << bad;
  }
}

TEST(CrossEntropy, RejectsLabelsOfAnotherShape) {
  const Split vocab = Split::unsharded("vocab", 17);
  const Tensor logits = random_tensor({kSequenceLength, 2, 17}, 1), label = labels(17);
  for (const Tensor& bad : {label.t(), label.flatten(), label.narrow(0, 0, 4)}) {
    EXPECT_THROW(loss(logits, bad, vocab, Group()), c10::ValueError) << bad.sizes();
  }
}

TEST(CrossEntropy, RejectsPaddingOfAnotherBatch) {
  const Placed<Sharded<kFeature>> logits(random_tensor({kSequenceLength, 2, 17}, 1));
  Step step(Group(), kSequenceLength);
  for (const std::vector<base::Range>& bad :
       {std::vector<base::Range>{{0, 5}}, {{0, 5}, {0, 6}}, {{0, 5}, {3, 2}}, {{-1, 5}, {0, 5}}}) {
    step.valid = bad;
    EXPECT_THROW(cross_entropy(logits, labels(17), Split::unsharded("vocab", 17), 1, step), c10::ValueError);
  }
}

TEST(CrossEntropy, RejectsInvalidOptions) {
  const Tensor logits = random_tensor({kSequenceLength, 2, 17}, 1);
  for (const LossOptions& bad : {options(-0.1, 0), options(1.1, 0), options(NAN, 0), options(0, -1e-4)}) {
    EXPECT_THROW(loss(logits, labels(17), Split::unsharded("vocab", 17), Group(), bad), c10::ValueError);
  }
}

TEST(CrossEntropy, RecordsNoNodeWithoutGradients) {
  const at::NoGradGuard no_grad;
  const Tensor logits = random_tensor({kSequenceLength, 2, 17}, 1).requires_grad_();
  const Tensor value = loss(logits, labels(17), Split::unsharded("vocab", 17), Group());
  EXPECT_FALSE(value.requires_grad());
  EXPECT_LE(relative_error(value, formula(logits, labels(17))), 1e-14);
}

}  // namespace
}  // namespace shardwise::nn::loss_test

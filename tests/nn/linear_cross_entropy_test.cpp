// The head and its loss in chunks: equal to cross_entropy of the head's logits, in value and in every
// gradient, for each placement of the input.
#include "shardwise/nn/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <gtest/gtest.h>

#include "shardwise/base/loss_chunks.h"
#include "tests/support/error_text.h"
#include "tests/support/layers.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::linear_cross_entropy_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;

constexpr int64_t kIn = 6;

/// A batch of s·b rows and a vocabulary, with a head that has a bias.
struct Problem {
  int64_t s, b, vocab;
  LossOptions options = LossOptions(7);

  Tensor x() const { return random_tensor({s, b, kIn}, 1); }
  Tensor weight() const { return random_tensor({vocab, kIn}, 2); }
  Tensor bias() const { return random_tensor({vocab}, 3); }
  Tensor labels() const {
    Tensor ids = at::arange(s * b, at::kLong).mul(5).remainder(vocab).view({s, b});
    return ids.masked_fill(at::arange(s * b).remainder(4).eq(3).view({s, b}), kIgnoreIndex);
  }
};

LossOptions all_options() {
  LossOptions options(7);
  options.label_smoothing = 0.1;
  options.z_loss = 0.01;
  return options;
}

/// Value and gradients by ATen over the full vocabulary.
struct Expected {
  Tensor loss, x, weight, bias;

  explicit Expected(const Problem& p)
      : x(p.x().requires_grad_()), weight(p.weight().requires_grad_()), bias(p.bias().requires_grad_()) {
    const Tensor logits = at::linear(x, weight, bias).flatten(0, 1), labels = p.labels().flatten();
    const Tensor sum = at::cross_entropy_loss(logits, labels, /*weight=*/{}, at::Reduction::Sum, kIgnoreIndex,
                                              p.options.label_smoothing);
    const Tensor lse = at::logsumexp(logits, {-1}).masked_fill(labels.eq(kIgnoreIndex), 0);
    loss = (sum + lse.square().sum() * p.options.z_loss) / p.options.valid_tokens;
    loss.backward();
  }
};

ColumnParallelLinear head_of(const Problem& p, const Group& group) {
  const Split vocab = Split::even("vocab", p.vocab, group.size());
  ColumnParallelLinear head("head", testing::with_bias(kIn, p.vocab), ShardRule::sharded(0, vocab), group,
                            at::kDouble);
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, full] : {std::pair{head.weight(), p.weight()}, {head.bias(), p.bias()}}) {
    parameter->value.copy_(slice_of(full, parameter->rule, group.rank()));
    parallel::zero_grad_(*parameter);
  }
  return head;
}

/// One rank's part of [s, b, h] for a placement.
template <class In>
Tensor local_of(const Tensor& full, const Step& step) {
  if constexpr (std::is_same_v<In, Sharded<kSequence>>) {
    return slice_of(full, step.sequence, 0, step.group.rank());
  } else {
    return full;
  }
}

/// Under R every rank has a partial sum of dX.
template <class In>
Tensor dx_of(const Tensor& x, const Group& group) {
  return std::is_same_v<In, Replicated> ? group.all_reduce(x.grad()) : x.grad();
}

template <class In>
void check(const Problem& p, const Group& group) {
  const Expected expected(p);
  const Step step(group, p.s);
  const ColumnParallelLinear head = head_of(p, group);
  const Tensor x = local_of<In>(p.x(), step).clone().requires_grad_();
  const Tensor loss = linear_cross_entropy(Placed<In>(x), head, p.labels(), p.options, step).local();
  loss.backward();
  EXPECT_LE(relative_error(loss, expected.loss), 1e-14);
  EXPECT_LE(relative_error(dx_of<In>(x, group), local_of<In>(expected.x.grad(), step)), 1e-13);
  const auto shard = [&](const Tensor& full) { return slice_of(full, head.weight()->rule, group.rank()); };
  EXPECT_LE(relative_error(head.weight()->main_grad, shard(expected.weight.grad())), 1e-13);
  EXPECT_LE(relative_error(head.bias()->main_grad, shard(expected.bias.grad())), 1e-13);
}

/// Vocabularies that leave ranks without a class, sequences that leave ranks without a row, and rows of one
/// chunk and of several.
std::vector<Problem> problems() {
  constexpr int64_t chunk = base::kLossChunkRows;
  return {{5, 2, 127}, {5, 2, 17, all_options()}, {3, 1, 2}, {chunk + 3, 1, 3, all_options()}, {chunk, 3, 5}};
}

class LinearCrossEntropy : public ::testing::TestWithParam<int> {};

TEST_P(LinearCrossEntropy, EqualsCrossEntropyOfTheLogits) {
  testing::on_ranks(GetParam(), [](const Group& group) {
    for (const Problem& p : problems()) {
      for (const Group& one : {group, group.without_symmetric_heap()}) {
        SCOPED_TRACE(::testing::Message() << p.s << " × " << p.b << " rows, " << p.vocab << " classes");
        check<Invariant>(p, one);
        check<Sharded<kSequence>>(p, one);
        check<Replicated>(p, one);
      }
    }
  });
}

TEST_P(LinearCrossEntropy, EveryRankHasTheSameBits) {
  testing::on_ranks(GetParam(), [](const Group& group) {
    const Problem p{base::kLossChunkRows, 2, 5, all_options()};
    const Step step(group, p.s);
    const Placed<Sharded<kSequence>> x(local_of<Sharded<kSequence>>(p.x(), step));
    const Tensor loss = linear_cross_entropy(x, head_of(p, group), p.labels(), p.options, step).local();
    Tensor first = loss.detach().clone();
    group.broadcast_(first, 0);
    EXPECT_TRUE(testing::same_bits(loss.detach(), first));
  });
}

/// The value does not depend on whether gradients are recorded, and without them none is added.
TEST_P(LinearCrossEntropy, AddsNoGradientWithoutRecording) {
  testing::on_ranks(GetParam(), [](const Group& group) {
    const Problem p{5, 2, 17};
    const Step step(group, p.s);
    const ColumnParallelLinear head = head_of(p, group);
    const Placed<Invariant> x(p.x());
    const Tensor recorded = linear_cross_entropy(x, head, p.labels(), p.options, step).local();
    parallel::zero_grad_(*head.weight());
    const at::NoGradGuard no_grad;
    const Tensor value = linear_cross_entropy(x, head, p.labels(), p.options, step).local();
    EXPECT_FALSE(value.requires_grad());
    EXPECT_TRUE(testing::same_bits(value, recorded.detach()));
    EXPECT_EQ(head.weight()->main_grad.abs().max().item<double>(), 0);
    EXPECT_EQ(head.weight()->pending_backwards, 0);
  });
}

/// Only what is needed: dX alone if the head is frozen, the head's gradients alone if x needs none.
TEST_P(LinearCrossEntropy, ComputesTheGradientsThatAreNeeded) {
  testing::on_ranks(GetParam(), [](const Group& group) {
    const Problem p{5, 2, 17};
    const Expected expected(p);
    const Step step(group, p.s);
    ColumnParallelLinear head = head_of(p, group);
    const Tensor x = p.x();
    const comm::Counters before = group.counters();
    linear_cross_entropy(Placed<Invariant>(x), head, p.labels(), p.options, step).local().backward();
    EXPECT_EQ((group.counters() - before)[Op::all_reduce].calls, 0);
    EXPECT_LE(relative_error(head.weight()->main_grad,
                             slice_of(expected.weight.grad(), head.weight()->rule, group.rank())),
              1e-13);
    for (const ParameterPtr& parameter : {head.weight(), head.bias()}) parallel::freeze_(*parameter);
    const Tensor trained = p.x().requires_grad_();
    linear_cross_entropy(Placed<Invariant>(trained), head, p.labels(), p.options, step).local().backward();
    EXPECT_LE(relative_error(trained.grad(), expected.x.grad()), 1e-13);
    EXPECT_FALSE(head.weight()->main_grad.defined());
  });
}

TEST_P(LinearCrossEntropy, MicroBatchesAddUp) {
  testing::on_ranks(GetParam(), [](const Group& group) {
    const Problem p{5, 2, 17};
    const Expected expected(p);
    const ColumnParallelLinear head = head_of(p, group);
    const Step step(group, p.s);
    for (const int64_t column : {0, 1}) {
      const Placed<Invariant> x(p.x().narrow(1, column, 1));
      linear_cross_entropy(x, head, p.labels().narrow(1, column, 1), p.options, step).local().backward();
    }
    EXPECT_LE(relative_error(head.weight()->main_grad,
                             slice_of(expected.weight.grad(), head.weight()->rule, group.rank())),
              1e-13);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LinearCrossEntropy, ::testing::Values(1, 2, 3, 4));

/// The observer sees all rows of logits, then of their gradients, chunk by chunk.
TEST(LinearCrossEntropyOfOneRank, ShowsTheLogitsOfEachChunk) {
  const Problem p{base::kLossChunkRows + 3, 1, 5};
  const ColumnParallelLinear head = head_of(p, Group());
  std::vector<std::pair<Stage::Kind, int64_t>> seen;
  const Observer observer = [&](const Stage& stage, const Tensor& rows) {
    seen.emplace_back(stage.kind, rows.size(0));
  };
  linear_cross_entropy(Placed<Invariant>(p.x()), head, p.labels(), p.options, Step(Group(), p.s), &observer);
  using enum Stage::Kind;
  constexpr int64_t first = (base::kLossChunkRows + 3) / 2, second = base::kLossChunkRows + 3 - first;
  EXPECT_EQ(seen,
            (std::vector<std::pair<Stage::Kind, int64_t>>{
                {logits, first}, {logits_gradient, first}, {logits, second}, {logits_gradient, second}}));
}

/// The errors of gradients that a forward has added and whose backward is missing, wrong or too late.
class EarlyGradients : public ::testing::Test {
 protected:
  Tensor forward() const {
    return linear_cross_entropy(Placed<Invariant>(p_.x()), head_, p_.labels(), p_.options,
                                Step(Group(), p_.s))
        .local();
  }
  parallel::ParamSpecs specs() const {
    return {parallel::ParamSpec::over_tp(head_.weight(), parallel::GradientKind::sharded)};
  }
  const Problem p_{5, 2, 17};
  const ColumnParallelLinear head_ = head_of(p_, Group());
};

TEST_F(EarlyGradients, AreRefusedWithoutTheirBackward) {
  forward();
  const std::string text = test::error_text([&] { parallel::synced_norm_(specs(), Group()); });
  EXPECT_PRED2(test::contains, text, "head.weight: every loss computed with gradients needs its backward");
  parallel::zero_grad_(*head_.weight());
  EXPECT_NO_THROW(parallel::synced_norm_(specs(), Group()));
}

TEST_F(EarlyGradients, AreRefusedIfTheyWereZeroed) {
  const Tensor loss = forward();
  parallel::zero_grad_(*head_.weight());
  const std::string text = test::error_text([&] { loss.backward(); });
  EXPECT_PRED2(test::contains, text, "must still be there in backward; got zero_grad_");
}

TEST_F(EarlyGradients, AreThoseOfTheLossItself) {
  const std::string text = test::error_text([&] { (forward() * 3).backward(); });
  EXPECT_PRED2(test::contains, text, "got 3; divide by LossOptions::valid_tokens");
}

TEST_F(EarlyGradients, NeedAMainGradient) {
  head_.weight()->main_grad.reset();
  const std::string text = test::error_text([&] { forward(); });
  EXPECT_PRED2(test::contains, text, "call zero_grad_ before the forward");
}

TEST(LinearCrossEntropyOfOneRank, RejectsOtherShapesAndLabels) {
  const Problem p{5, 2, 17};
  const ColumnParallelLinear head = head_of(p, Group());
  const auto loss = [&](const Tensor& x, const Tensor& labels) {
    return linear_cross_entropy(Placed<Invariant>(x), head, labels, p.options, Step(Group(), p.s));
  };
  EXPECT_NO_THROW(loss(p.x(), p.labels()));
  EXPECT_THROW(loss(p.x().narrow(0, 0, 4), p.labels()), c10::ValueError);
  EXPECT_THROW(loss(p.x().narrow(2, 0, 5), p.labels()), c10::ValueError);
  EXPECT_THROW(loss(p.x().flatten(0, 1), p.labels()), c10::ValueError);
  EXPECT_THROW(loss(p.x(), p.labels().t()), c10::ValueError);
  EXPECT_THROW(loss(p.x(), p.labels().flatten()), c10::ValueError);
  EXPECT_THROW(loss(p.x(), p.labels().fill_(17)), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::nn::linear_cross_entropy_test

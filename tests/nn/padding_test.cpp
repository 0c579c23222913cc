// Padding changes neither the loss nor learned positions. attention_test covers attention.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shardwise/nn/loss.h"
#include "shardwise/nn/positions.h"
#include "tests/support/layers.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::padding_test {
namespace {

using at::Tensor;
using base::Split;
using comm::Group;
using testing::random_tensor;
using testing::slice_of;

constexpr int64_t kLength = 7, kBatch = 3, kVocab = 5;
const std::vector<base::Range> kValid = {{2, 7}, {0, 4}, {3, 3}};

Step padded_step(const Group& group) {
  Step step(group, kLength);
  step.valid = kValid;
  return step;
}

bool is_token(int64_t row, int64_t sequence) {
  return kValid[sequence].begin <= row && row < kValid[sequence].end;
}

TEST(Padding, HasNoLossAndNoGradient) {
  Tensor labels = at::zeros({kLength, kBatch}, at::kLong), ignoring = labels.clone();
  for (int64_t row = 0; row < kLength; ++row) {
    for (int64_t sequence = 0; sequence < kBatch; ++sequence) {
      labels[row][sequence] = (row + sequence) % kVocab;
      ignoring[row][sequence] = is_token(row, sequence) ? (row + sequence) % kVocab : kIgnoreIndex;
    }
  }
  const Tensor logits = random_tensor({kLength, kBatch, kVocab}, 1);
  testing::on_ranks(2, [&](const Group& group) {
    const Split vocab = Split::even("vocab", kVocab, 2);
    const auto run = [&](const Tensor& with, const Step& step) {
      const Tensor x = slice_of(logits, vocab, 2, group.rank()).requires_grad_();
      const Tensor loss = cross_entropy(Placed<Sharded<kFeature>>(x), with, vocab, {9.0}, step).local();
      loss.backward();
      return std::pair(loss.detach(), x.grad());
    };
    const auto [loss, d_logits] = run(labels, padded_step(group));
    const auto [expected, d_expected] = run(ignoring, Step(group, kLength));
    EXPECT_TRUE(testing::same_bits(loss, expected));
    EXPECT_TRUE(testing::same_bits(d_logits, d_expected));
    EXPECT_EQ(labels[0][0].item<int64_t>(), 0) << "the caller's labels were changed";
    EXPECT_EQ(d_logits.select(1, 2).abs().sum().item<double>(), 0);
  });
}

template <ResidualStream Stream>
void check_positions(const Group& group) {
  const Step step = padded_step(group);
  const LearnedPositions add("p", kLength, 4, parallel::Init::normal(1), group, at::kDouble);
  UsedParameters parameters;
  add.append_parameters(parameters);
  const parallel::Parameter& table = *parameters.at(0).parameter;
  {
    const at::NoGradGuard no_grad;
    table.value.copy_(random_tensor({kLength, 4}, 1));
  }
  parallel::zero_grad_(*parameters.at(0).parameter);
  const auto local = [&](const Tensor& x) { return testing::local_rows<Stream>(x, step); };
  const Tensor x = random_tensor({kLength, kBatch, 4}, 2), dy = random_tensor({kLength, kBatch, 4}, 3);
  Tensor expected = x.clone(), d_table = at::zeros({kLength, 4}, at::kDouble);
  for (int64_t row = 0; row < kLength; ++row) {
    for (int64_t sequence = 0; sequence < kBatch; ++sequence) {
      const int64_t position = std::max<int64_t>(0, row - kValid[sequence].begin);
      expected[row][sequence] += table.value.detach()[position];
      d_table[position] += dy[row][sequence];
    }
  }
  const Tensor y = add(Placed<Stream>(local(x).requires_grad_()), step).local();
  y.backward(local(dy));
  EXPECT_TRUE(testing::same_bits(y.detach(), local(expected)));
  parallel::sync_gradients_(specs_of<Stream>(parameters), group);
  EXPECT_LE(testing::relative_error(table.main_grad, d_table), 1e-15);
}

TEST(Padding, LearnedPositionsCountFromTheFirstToken) {
  for (const int ranks : {1, 2, 3}) {
    testing::on_ranks(ranks, check_positions<Invariant>);
    testing::on_ranks(ranks, check_positions<Sharded<kSequence>>);
  }
}

}  // namespace
}  // namespace shardwise::nn::padding_test

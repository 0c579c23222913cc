#include "shardwise/nn/positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "tests/support/layers.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::positions_test {
namespace {

using at::Tensor;
using comm::Group;
using testing::random_tensor;
using testing::same_bits;

constexpr int64_t kPositions = 9, kBatch = 2, kHidden = 6;

Tensor full_table() {
  return random_tensor({kPositions, kHidden}, 1);
}

struct Table {
  LearnedPositions add;
  UsedParameters parameters;

  explicit Table(const Group& group)
      : add("positions", kPositions, kHidden, parallel::Init::normal(1), group, at::kDouble) {
    add.append_parameters(parameters);
    const at::NoGradGuard no_grad;
    weight()->value.copy_(full_table());
    parallel::zero_grad_(*weight());
  }
  const ParameterPtr& weight() const { return parameters.at(0).parameter; }
};

// The full table's gradient, after the sum over the ranks under SP.
template <ResidualStream Stream>
void check(const Group& group, int64_t sequence_length) {
  const Table table(group);
  const Step step(group, sequence_length);
  const std::vector<int64_t> shape = {sequence_length, kBatch, kHidden};
  const auto local = [&](const Tensor& x) { return testing::local_rows<Stream>(x, step); };
  const Tensor full_x = random_tensor(shape, 2), full_dy = random_tensor(shape, 3);
  const Tensor x = local(full_x).requires_grad_();
  const comm::Counters before = group.counters();
  const Tensor y = table.add(Placed<Stream>(x), step).local();
  y.backward(local(full_dy));
  EXPECT_EQ((group.counters() - before).total().calls, 0);
  EXPECT_TRUE(same_bits(y.detach(), local(full_x + full_table().narrow(0, 0, sequence_length).unsqueeze(1))));
  EXPECT_TRUE(same_bits(x.grad(), local(full_dy)));

  parallel::sync_gradients_(specs_of<Stream>(table.parameters), group);
  const Tensor gradient = table.weight()->main_grad;
  EXPECT_LE(testing::relative_error(gradient.narrow(0, 0, sequence_length), full_dy.sum(1)), 1e-15);
  EXPECT_EQ(gradient.narrow(0, sequence_length, kPositions - sequence_length).abs().sum().item<double>(), 0);
}

TEST(LearnedPositions, EqualTheTableUnderTpAndSp) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& group) {
      for (const int64_t sequence_length : {9, 7, 2}) {  // all positions, some, and ranks without a row
        check<Invariant>(group, sequence_length);
        check<Sharded<kSequence>>(group, sequence_length);
      }
    });
  }
}

TEST(LearnedPositions, FrozenTableAddsTheSameAndHasNoGradient) {
  const Table table{Group()}, frozen{Group()};
  parallel::freeze_(*frozen.weight());
  const Tensor x = random_tensor({kPositions, kBatch, kHidden}, 2).requires_grad_();
  const Step step(Group(), kPositions);
  const Tensor y = frozen.add(Placed<Invariant>(x), step).local();
  EXPECT_TRUE(same_bits(y, table.add(Placed<Invariant>(x), step).local()));
  y.backward(random_tensor(y.sizes().vec(), 3));
  EXPECT_TRUE(same_bits(x.grad(), random_tensor(y.sizes().vec(), 3)));
  EXPECT_FALSE(frozen.weight()->main_grad.defined());
}

TEST(LearnedPositions, RecordNoNodeWithoutGradients) {
  const Table table{Group()};
  const at::NoGradGuard no_grad;
  const Tensor x = random_tensor({kPositions, kBatch, kHidden}, 2).requires_grad_();
  EXPECT_FALSE(table.add(Placed<Invariant>(x), Step(Group(), kPositions)).local().requires_grad());
}

TEST(LearnedPositions, RejectASequenceThatIsTooLong) {
  testing::on_ranks(2, [](const Group& group) {
    const Table table(group);
    const Step step(group, kPositions + 1);
    const Tensor shard = random_tensor({step.local_sequence().size(), kBatch, kHidden}, 2);
    EXPECT_THROW(table.add(Placed<Sharded<kSequence>>(shard), step), c10::ValueError);
  });
}

TEST(LearnedPositions, RejectAStepOfAnotherBatch) {
  const Table table{Group()};
  Step step(Group(), /*sequence_length=*/3);
  step.valid = {{0, 2}};
  const Placed<Invariant> x(random_tensor({3, kBatch, kHidden}, 2));
  EXPECT_THROW(table.add(x, step), c10::ValueError);
}

// Rows of two sequences, which continue after their caches.
TEST(LearnedPositions, ContinueAfterTheCachedTokens) {
  const at::NoGradGuard no_grad;
  const Table table{Group()};
  Cache first = Cache::empty({0, 1}, 1, 1, /*capacity=*/8, at::kDouble), second = first;
  first.length = 3;
  Step step(Group(), /*sequence_length=*/5);
  step.cached = {{&first, 2}, {&second, 3}};
  const Tensor x = random_tensor({5, 1, kHidden}, 2), y = table.add(Placed<Invariant>(x), step).local();
  const Tensor rows = at::cat({full_table().narrow(0, 3, 2), full_table().narrow(0, 0, 3)});
  EXPECT_TRUE(same_bits(y, x + rows.unsqueeze(1)));
  second.length = 7;
  EXPECT_THROW(table.add(Placed<Invariant>(x), step), c10::ValueError);  // beyond the cache
}

}  // namespace
}  // namespace shardwise::nn::positions_test

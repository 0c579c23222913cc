#include "shardwise/nn/embedding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::embedding_test {
namespace {

using at::Tensor;
using base::Split;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::same_bits;
using testing::slice_of;

constexpr int64_t kSequenceLength = 5, kHidden = 6;

// Ids that repeat and include the first and the last row.
Tensor ids(int64_t vocab) {
  return at::tensor({0, 1, 0, 16, 3, 3, 16, 8, 0, 5}, at::kLong).remainder(vocab).view({kSequenceLength, 2});
}

struct Table {
  Group group;
  Split vocab;
  VocabParallelEmbedding embedding;

  Table(const Group& ranks, int64_t vocab_size)
      : group(ranks),
        vocab(Split::even("vocab", vocab_size, ranks.size())),
        embedding("embedding", kHidden, vocab, parallel::Init::normal(1), ranks, at::kDouble) {
    const at::NoGradGuard no_grad;
    embedding.weight()->value.copy_(slice_of(full(), vocab, 0, ranks.rank()));
    parallel::zero_grad_(*embedding.weight());
  }
  Tensor full() const { return random_tensor({vocab.size(), kHidden}, 1); }
  Tensor expected() const { return at::embedding(full(), ids(vocab.size())); }

  void check_gradient(const Tensor& dy) const {
    const Tensor leaf = full().requires_grad_();
    at::embedding(leaf, ids(vocab.size())).backward(dy);
    EXPECT_LE(
        testing::relative_error(embedding.weight()->main_grad, slice_of(leaf.grad(), vocab, 0, group.rank())),
        1e-15);
  }
};

// With 2 ids some ranks have no row.
void for_each_table(const std::function<void(const Table&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      for (const int64_t vocab : {17, 2}) {
        check(Table(group, vocab));
        check(Table(group.without_symmetric_heap(), vocab));
      }
    });
  }
}

TEST(VocabParallelEmbedding, LooksUpTheFullTable) {
  for_each_table([](const Table& table) {
    const Step step(table.group, kSequenceLength);
    const Tensor y = table.embedding.to<Invariant>(ids(table.vocab.size()), step).local();
    EXPECT_TRUE(same_bits(y.detach(), table.expected())) << "one rank's row and zeros must add up exactly";
    const Tensor dy = random_tensor(y.sizes().vec(), 2);
    y.backward(dy);
    table.check_gradient(dy);
  });
}

TEST(VocabParallelEmbedding, ReturnsEachRanksRowsOfTheSequence) {
  for_each_table([](const Table& table) {
    const Step step(table.group, kSequenceLength);
    const int rank = table.group.rank();
    const Tensor y = table.embedding.to<Sharded<kSequence>>(ids(table.vocab.size()), step).local();
    EXPECT_TRUE(same_bits(y.detach(), slice_of(table.expected(), step.sequence, 0, rank)));
    const Tensor dy = random_tensor({kSequenceLength, 2, kHidden}, 2);
    y.backward(slice_of(dy, step.sequence, 0, rank));
    table.check_gradient(dy);
  });
}

TEST(VocabParallelEmbedding, CallsTheDocumentedCollectives) {
  testing::on_ranks(3, [](const Group& group) {
    const Table table(group, 17);
    const Step step(group, kSequenceLength);
    const auto calls = [&](const std::function<Tensor()>& act, Op op) {
      const comm::Counters before = group.counters();
      const Tensor y = act();
      const comm::Counters used = group.counters() - before;
      EXPECT_EQ(used.total().calls, used[op].calls);
      return std::pair(used[op].calls, y);
    };
    const auto backward = [](const Tensor& y) { return [y] { return y.backward(y.detach()), y; }; };
    const auto [to_all, y] =
        calls([&] { return table.embedding.to<Invariant>(ids(17), step).local(); }, Op::all_reduce);
    EXPECT_EQ(to_all, 1);
    EXPECT_EQ(calls(backward(y), Op::all_reduce).first, 0);
    const auto [to_shards, y_shard] = calls(
        [&] { return table.embedding.to<Sharded<kSequence>>(ids(17), step).local(); }, Op::reduce_scatter);
    EXPECT_EQ(to_shards, 1);
    EXPECT_EQ(calls(backward(y_shard), Op::all_gather).first, 1);
  });
}

TEST(VocabParallelEmbedding, RejectsIdsOutsideTheVocabulary) {
  const Table table(Group(), 17);
  const Step step(Group(), 1);
  EXPECT_THROW(table.embedding.to<Invariant>(at::tensor({17}, at::kLong).view({1, 1}), step),
               c10::ValueError);
  EXPECT_THROW(table.embedding.to<Invariant>(at::tensor({-1}, at::kLong).view({1, 1}), step),
               c10::ValueError);
  EXPECT_THROW(table.embedding.to<Invariant>(at::tensor({1.0}).view({1, 1}), step), c10::ValueError);
  EXPECT_THROW(table.embedding.to<Invariant>(at::tensor({1}, at::kLong), step), c10::ValueError);
}

TEST(VocabParallelEmbedding, RecordsNoNodeWithoutGradients) {
  const Table table(Group(), 17);
  const at::NoGradGuard no_grad;
  const Tensor y = table.embedding.to<Invariant>(ids(17), Step(Group(), kSequenceLength)).local();
  EXPECT_FALSE(y.requires_grad());
}

}  // namespace
}  // namespace shardwise::nn::embedding_test

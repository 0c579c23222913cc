// The split-batch schedule: which all_reduces are in flight when, and that overlap changes no bit. That it
// computes what full batches do is tested by the grid (grid_test.cpp).
#include "shardwise/nn/split_batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/parallel/late_backend.h"
#include "tests/parallel/told_backend.h"
#include "tests/support/cases.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::split_batch_test {
namespace {

using base::Recompute;
using comm::Group;
using parallel::Overlap;

constexpr int64_t kSequence = 7;

bool nothing(const std::string&) {
  return false;
}
/// The first block's input then needs no gradient.
bool embedding(const std::string& name) {
  return name.find("embed") != std::string::npos;
}
/// Their dgrad all_reduces have no weight gradient to overlap with.
bool column_weights(const std::string& name) {
  return name.find("qkv_proj") != std::string::npos || name.find("up_proj") != std::string::npos;
}

struct Asked {
  at::ScalarType dtype = at::kFloat;
  int64_t batch = 3;
  Recompute recompute = Recompute::none;
  bool is_padded = false;
  bool (*is_frozen)(const std::string& parameter) = nothing;
};

nn::Step split_step(const Asked& asked, const Group& group, Overlap overlap) {
  nn::Step step(group, kSequence);
  step.overlap = overlap;
  step.recompute = asked.recompute;
  step.split_batch = true;
  for (int64_t b = 0; asked.is_padded && b < asked.batch; ++b) step.valid.push_back({b % 3, kSequence});
  return step;
}

/// The loss, and every gradient that this rank holds.
std::vector<at::Tensor> results(const Asked& asked, const Group& group, const nn::Step& step) {
  const model::Config config = small_config();
  model::DecoderWeights weights(config, group, asked.dtype);
  for (const nn::UsedParameter& role : weights.roles()) {
    if (asked.is_frozen(role.parameter->name)) parallel::freeze_(*role.parameter);
  }
  weights.initialize_(1);
  zero_gradients_(weights);
  const Batch batch = random_batch(config, kSequence, asked.batch, 1);
  const at::Tensor loss =
      model::Decoder<nn::Invariant>(weights).loss(batch.ids, batch.labels, batch.valid_tokens, step).local();
  std::vector<at::Tensor> results = {loss.detach()};
  loss.backward();
  for (const nn::UsedParameter& role : weights.roles()) {
    if (!role.parameter->is_frozen()) results.push_back(role.parameter->main_grad);
  }
  return results;
}

/// How many of them hold other bits, or nothing.
int differing(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  int count = int(a.size() != b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    count += !same_bits(a[i], b[i]) || !std::isfinite(a[i].sum().item<double>());
  return count;
}

std::vector<Asked> all_asked() {
  std::vector<Asked> all;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const int64_t batch : {2, 3, 5})
      for (const Recompute recompute : {Recompute::none, Recompute::selective})
        for (const bool is_padded : {false, true})
          for (const auto is_frozen : {nothing, embedding, column_weights})
            all.push_back({dtype, batch, recompute, is_padded, is_frozen});
  return all;
}

TEST(SplitBatch, HasTheSameBitsWhateverIsInFlight) {
  const std::vector<Asked> all = all_asked();
  for (const int ranks : {1, 2, 3}) {
    const std::string job = new_job();
    on_ranks(ranks, [&](const Group& group) {
      const Group late = late_group(job, group.rank(), ranks);
      for (const Asked& asked : all) {
        const auto expected = results(asked, group, split_step(asked, group, Overlap::off));
        for (const Group& on : {group, group.without_symmetric_heap(), late})
          EXPECT_EQ(differing(results(asked, on, split_step(asked, on, Overlap::on)), expected), 0)
              << ranks << " ranks, batch " << asked.batch << " of " << c10::toString(asked.dtype);
      }
    });
  }
  std::printf("covered: %zu combinations of a split batch on 3 paths\n", 3 * all.size());
}

// Verify's collectives run between an all_reduce's start and its wait.
TEST(SplitBatch, HasTheSameBitsWithVerify) {
  on_ranks(3, [](const Group& group) {
    nn::Step step = split_step({}, group, Overlap::on);
    const auto expected = results({}, group, step);
    step.verify = parallel::Verify::on;
    EXPECT_EQ(differing(results({}, group, step), expected), 0);
  });
}

TEST(SplitBatch, GivesTheSameGradientTwiceFromOneGraph) {
  on_ranks(2, [](const Group& group) {
    const model::Config config = small_config();
    model::DecoderWeights weights(config, group, at::kDouble);
    weights.initialize_(1);
    zero_gradients_(weights);
    const Batch batch = random_batch(config, kSequence, /*batch=*/3, 1);
    const nn::Step step = split_step({}, group, Overlap::on);
    const at::Tensor loss = model::Decoder<nn::Invariant>(weights)
                                .loss(batch.ids, batch.labels, batch.valid_tokens, step)
                                .local();
    const auto backward = [&](bool keeps_graph) {
      zero_gradients_(weights);
      loss.backward({}, keeps_graph);
      std::vector<at::Tensor> gradients;
      for (const nn::UsedParameter& role : weights.roles())
        gradients.push_back(role.parameter->main_grad.clone());
      return gradients;
    };
    const auto first = backward(/*keeps_graph=*/true);
    EXPECT_EQ(differing(backward(/*keeps_graph=*/false), first), 0);
  });
}

// A backward that fails on all ranks after all_reduces were started leaves a usable group.
TEST(SplitBatch, LeavesAUsableGroupWhenBackwardFails) {
  on_ranks(2, [](const Group& group) {
    const nn::Step step = split_step({}, group, Overlap::on);
    const auto expected = results({}, group, step);
    const model::Config config = small_config();
    model::DecoderWeights weights(config, group, at::kFloat);
    weights.initialize_(1);
    zero_gradients_(weights);
    for (const nn::UsedParameter& role : weights.roles())
      if (role.parameter->name.find("layers.0.mlp") != std::string::npos) role.parameter->main_grad.reset();
    const Batch batch = random_batch(config, kSequence, /*batch=*/3, 1);
    const at::Tensor loss = model::Decoder<nn::Invariant>(weights)
                                .loss(batch.ids, batch.labels, batch.valid_tokens, step)
                                .local();
    EXPECT_THROW(loss.backward(), c10::ValueError);
    EXPECT_EQ(differing(results({}, group, step), expected), 0);
  });
}

/// The numbers of the all_reduces, positive when they start and negative when they are waited for.
std::vector<int> events(Overlap overlap) {
  std::vector<int> result;
  on_threads(2, [&](int rank, const std::string& job) {
    std::vector<int> seen;
    const Group group = told_group(job, rank, 2, [&](const char*, int number, bool begins) {
      seen.push_back(begins ? number : -number);
    });
    model::Config config = small_config();
    config.num_hidden_layers = 1;
    model::DecoderWeights weights(config, group, at::kFloat);
    weights.initialize_(1);
    zero_gradients_(weights);
    const Batch batch = random_batch(config, kSequence, /*batch=*/2, 1);
    nn::Step step = split_step({}, group, overlap);
    const at::Tensor loss = model::Decoder<nn::Invariant>(weights)
                                .loss(batch.ids, batch.labels, batch.valid_tokens, step)
                                .local();
    loss.backward();
    if (rank == 0) result = seen;
  });
  return result;
}

// Each all_reduce is in flight while the other half's next branch computes. 1: the embedding's; 6 and 7: the
// loss's; 8: the head's dgrad, overlapped with its weight gradient.
TEST(SplitBatch, OverlapsTheOtherHalfForwardAndBackward) {
  EXPECT_EQ(events(Overlap::on), (std::vector<int>{1, -1,                                //
                                                   2, 3,  -2, 4,  -3,  5,  -4,  -5,      // attention, MLP
                                                   6, -6, 7,  -7, 8,   -8,               //
                                                   9, 10, -9, 11, -10, 12, -11, -12}));  // MLP, attention
  std::vector<int> in_turn;
  for (int number = 1; number <= 12; ++number) in_turn.insert(in_turn.end(), {number, -number});
  EXPECT_EQ(events(Overlap::off), in_turn);
}

// Compares the logits with a full batch's.
TEST(SplitBatch, KeepsTheOrderOfTheBatch) {
  on_ranks(2, [](const Group& group) {
    const model::Config config = small_config();
    model::DecoderWeights weights(config, group, at::kDouble);
    weights.initialize_(1);
    const Batch batch = random_batch(config, kSequence, /*batch=*/2, 1);
    const model::Decoder<nn::Invariant> model(weights);
    nn::Step step(group, kSequence);
    const at::Tensor whole = model.logits(batch.ids, step).local().detach();
    step.split_batch = true;
    const at::Tensor halves = model.logits(batch.ids, step).local().detach();
    EXPECT_LT(relative_error(halves, whole), 1e-12);
  });
}

TEST(SplitBatch, RefusesWhatItCannotSplit) {
  on_ranks(2, [](const Group& group) {
    const auto refusal = [&](const Asked& asked, const std::function<void(nn::Step&)>& change) {
      nn::Step step = split_step(asked, group, Overlap::on);
      change(step);
      return test::error_text([&] { results(asked, group, step); });
    };
    EXPECT_EQ(refusal({.batch = 1}, [](nn::Step&) {}),
              "step: a split batch must have 2 sequences or more; got 1");
    EXPECT_EQ(refusal({}, [](nn::Step& step) { step.dropout = 0.1; }),
              "step: a split batch must have no dropout; got 0.1 and 0");
    EXPECT_EQ(refusal({}, [](nn::Step& step) { step.recompute = Recompute::full; }),
              "step: a split batch must have recompute none or selective; got full");
    const Batch batch = random_batch(small_config(), kSequence, /*batch=*/2, 1);
    model::DecoderWeights weights(small_config(), group, at::kFloat);
    weights.initialize_(1);
    EXPECT_EQ(test::error_text([&] {
                model::Decoder<nn::Sharded<nn::kSequence>>(weights).logits(
                    batch.ids, split_step({}, group, Overlap::on));
              }),
              "step: a split batch needs a residual stream that is the same on every rank; got a "
              "sequence-sharded one");
  });
}

}  // namespace
}  // namespace shardwise::testing::split_batch_test

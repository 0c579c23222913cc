// The split-batch schedule: when collectives are in flight, and that overlap changes no bit. grid_test.cpp
// compares its results with the reference.
#include "shardwise/nn/split_batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/parallel/late_backend.h"
#include "tests/parallel/recording_backend.h"
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
/// With these frozen the first block's input needs no gradient.
bool embedding(const std::string& name) {
  return name.find("embed") != std::string::npos;
}
/// With these frozen the dgrad all_reduces have no wgrad to overlap with.
bool column_weights(const std::string& name) {
  return name.find("qkv_proj") != std::string::npos || name.find("up_proj") != std::string::npos;
}

struct Variant {
  at::ScalarType dtype = at::kFloat;
  int64_t batch = 3;
  Recompute recompute = Recompute::none;
  bool is_padded = false;
  bool (*is_frozen)(const std::string& parameter) = nothing;
};

nn::Step split_batch_step(const Variant& variant, const Group& group, Overlap overlap) {
  nn::Step step(group, kSequence);
  step.overlap = overlap;
  step.recompute = variant.recompute;
  step.split_batch = true;
  for (int64_t b = 0; variant.is_padded && b < variant.batch; ++b) step.valid.push_back({b % 3, kSequence});
  return step;
}

/// Returns the loss and this rank's gradients.
std::vector<at::Tensor> results(const Variant& variant, const Group& group, const nn::Step& step) {
  const config::Config config = small_config();
  model::DecoderWeights weights(config, group, variant.dtype);
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (variant.is_frozen(used.parameter->name)) parallel::freeze_(*used.parameter);
  }
  weights.initialize_(1);
  zero_gradients_(weights);
  const Batch batch = random_batch(config, kSequence, variant.batch, 1);
  const at::Tensor loss =
      model::Decoder<nn::Invariant>(weights).loss(batch.ids, batch.labels, batch.valid_tokens, step).local();
  std::vector<at::Tensor> results = {loss.detach()};
  loss.backward();
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (!used.parameter->is_frozen()) results.push_back(used.parameter->main_grad);
  }
  return results;
}

/// Returns how many tensors differ in any bit or are not finite.
int differing(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  int count = int(a.size() != b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    count += !same_bits(a[i], b[i]) || !std::isfinite(a[i].sum().item<double>());
  return count;
}

std::vector<Variant> all_variants() {
  std::vector<Variant> all;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const int64_t batch : {2, 3, 5})
      for (const Recompute recompute : {Recompute::none, Recompute::selective})
        for (const bool is_padded : {false, true})
          for (const auto is_frozen : {nothing, embedding, column_weights})
            all.push_back({dtype, batch, recompute, is_padded, is_frozen});
  return all;
}

TEST(SplitBatch, GivesTheSameBitsWithAndWithoutOverlap) {
  const std::vector<Variant> all = all_variants();
  for (const int ranks : {1, 2, 3}) {
    const std::string job = new_job();
    on_ranks(ranks, [&](const Group& group) {
      const Group late = late_group(job, group.rank(), ranks);
      for (const Variant& variant : all) {
        const auto expected = results(variant, group, split_batch_step(variant, group, Overlap::off));
        for (const Group& on : {group, group.without_symmetric_heap(), late})
          EXPECT_EQ(differing(results(variant, on, split_batch_step(variant, on, Overlap::on)), expected), 0)
              << ranks << " ranks, batch " << variant.batch << " of " << c10::toString(variant.dtype);
      }
    });
  }
  std::printf("covered: %zu combinations of the split-batch schedule on 3 paths\n", 3 * all.size());
}

// Verify::on adds collectives between the launch of an all_reduce and its wait.
TEST(SplitBatch, GivesTheSameBitsWithVerify) {
  on_ranks(3, [](const Group& group) {
    nn::Step step = split_batch_step({}, group, Overlap::on);
    const auto expected = results({}, group, step);
    step.verify = parallel::Verify::on;
    EXPECT_EQ(differing(results({}, group, step), expected), 0);
  });
}

TEST(SplitBatch, GivesTheSameGradientTwiceFromOneGraph) {
  on_ranks(2, [](const Group& group) {
    const config::Config config = small_config();
    model::DecoderWeights weights(config, group, at::kDouble);
    weights.initialize_(1);
    zero_gradients_(weights);
    const Batch batch = random_batch(config, kSequence, /*batch=*/3, 1);
    const nn::Step step = split_batch_step({}, group, Overlap::on);
    // Not Decoder::loss, whose forward computes the head's gradients once.
    const at::Tensor loss = nn::cross_entropy(model::Decoder<nn::Invariant>(weights).logits(batch.ids, step),
                                              batch.labels, weights.layout().vocab, batch.valid_tokens, step)
                                .local();
    const auto backward = [&](bool keeps_graph) {
      zero_gradients_(weights);
      loss.backward({}, keeps_graph);
      std::vector<at::Tensor> gradients;
      for (const nn::UsedParameter& used : weights.used_parameters())
        gradients.push_back(used.parameter->main_grad.clone());
      return gradients;
    };
    const auto first = backward(/*keeps_graph=*/true);
    EXPECT_EQ(differing(backward(/*keeps_graph=*/false), first), 0);
  });
}

// All ranks fail in the same way while all_reduces are in flight; the group works afterward.
TEST(SplitBatch, GroupWorksAfterAFailedBackward) {
  on_ranks(2, [](const Group& group) {
    const nn::Step step = split_batch_step({}, group, Overlap::on);
    const auto expected = results({}, group, step);
    const config::Config config = small_config();
    model::DecoderWeights weights(config, group, at::kFloat);
    weights.initialize_(1);
    zero_gradients_(weights);
    for (const nn::UsedParameter& used : weights.used_parameters())
      if (used.parameter->name.find("layers.0.mlp") != std::string::npos) used.parameter->main_grad.reset();
    const Batch batch = random_batch(config, kSequence, /*batch=*/3, 1);
    const at::Tensor loss = model::Decoder<nn::Invariant>(weights)
                                .loss(batch.ids, batch.labels, batch.valid_tokens, step)
                                .local();
    EXPECT_THROW(loss.backward(), c10::ValueError);
    EXPECT_EQ(differing(results({}, group, step), expected), 0);
  });
}

/// Returns the order of launches, as the number of the all_reduce, and of waits, as its negative.
std::vector<int> launch_order(Overlap overlap) {
  std::vector<int> result;
  on_threads(2, [&](int rank, const std::string& job) {
    std::vector<int> launch_order;
    const Group group = recording_group(job, rank, 2, [&](const char*, int number, bool begins) {
      launch_order.push_back(begins ? number : -number);
    });
    config::Config config = small_config();
    config.num_hidden_layers = 1;
    model::DecoderWeights weights(config, group, at::kFloat);
    weights.initialize_(1);
    zero_gradients_(weights);
    const Batch batch = random_batch(config, kSequence, /*batch=*/2, 1);
    nn::Step step = split_batch_step({}, group, overlap);
    const at::Tensor loss = model::Decoder<nn::Invariant>(weights)
                                .loss(batch.ids, batch.labels, batch.valid_tokens, step)
                                .local();
    loss.backward();
    if (rank == 0) result = launch_order;
  });
  return result;
}

// Each all_reduce is in flight while the other half computes its next layer. 1: embedding; 6: the loss's dX.
TEST(SplitBatch, AlternatesForwardAndBackward) {
  EXPECT_EQ(launch_order(Overlap::on), (std::vector<int>{1, -1,                             //
                                                         2, 3,  -2, 4, -3, 5,  -4, -5,      // attention, MLP
                                                         6, -6,                             //
                                                         7, 8,  -7, 9, -8, 10, -9, -10}));  // MLP, attention
  std::vector<int> sequential;
  for (int number = 1; number <= 10; ++number) sequential.insert(sequential.end(), {number, -number});
  EXPECT_EQ(launch_order(Overlap::off), sequential);
}

// Compares the logits with those of the unsplit batch.
TEST(SplitBatch, KeepsTheOrderOfTheBatch) {
  on_ranks(2, [](const Group& group) {
    const config::Config config = small_config();
    model::DecoderWeights weights(config, group, at::kDouble);
    weights.initialize_(1);
    const Batch batch = random_batch(config, kSequence, /*batch=*/2, 1);
    const model::Decoder<nn::Invariant> model(weights);
    nn::Step step(group, kSequence);
    const at::Tensor full = model.logits(batch.ids, step).local().detach();
    step.split_batch = true;
    const at::Tensor split = model.logits(batch.ids, step).local().detach();
    EXPECT_LT(relative_error(split, full), 1e-12);
  });
}

TEST(SplitBatch, InvalidStepsAreRejected) {
  on_ranks(2, [](const Group& group) {
    const auto error_of = [&](const Variant& variant, const std::function<void(nn::Step&)>& change) {
      nn::Step step = split_batch_step(variant, group, Overlap::on);
      change(step);
      return test::error_text([&] { results(variant, group, step); });
    };
    EXPECT_EQ(error_of({.batch = 1}, [](nn::Step&) {}),
              "step: the split-batch schedule needs a batch of 2 sequences or more; got 1");
    EXPECT_EQ(error_of({}, [](nn::Step& step) { step.dropout = 0.1; }),
              "step: the split-batch schedule needs dropout 0; got 0.1 and 0 in attention");
    EXPECT_EQ(error_of({}, [](nn::Step& step) { step.recompute = Recompute::full; }),
              "step: the split-batch schedule needs recompute none or selective; got full");
    const Batch batch = random_batch(small_config(), kSequence, /*batch=*/2, 1);
    model::DecoderWeights weights(small_config(), group, at::kFloat);
    weights.initialize_(1);
    EXPECT_EQ(test::error_text([&] {
                model::Decoder<nn::Sharded<nn::kSequence>>(weights).logits(
                    batch.ids, split_batch_step({}, group, Overlap::on));
              }),
              "step: the split-batch schedule needs TP without sequence parallelism; got TP+SP");
  });
}

}  // namespace
}  // namespace shardwise::testing::split_batch_test

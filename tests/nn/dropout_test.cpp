#include "shardwise/nn/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::dropout_test {
namespace {

using at::Tensor;
using comm::Group;
using testing::random_tensor;
using testing::same_bits;
using testing::slice_of;

constexpr int64_t kSequenceLength = 7, kHidden = 5;
constexpr DropoutSite kSite{3, DropoutSite::Site::mlp_output};

Step step(const Group& group, double p, int64_t sequence = kSequenceLength) {
  Step step(group, sequence, kernels::RandomKey::of(11));
  step.dropout = p;
  return step;
}

Tensor full() {
  return random_tensor({kSequenceLength, 2, kHidden}, 1);
}

Tensor dropped(const Tensor& x, const Step& step, const DropoutSite& site = kSite) {
  return dropout(Placed<Invariant>(x), step, site).local();
}

TEST(Dropout, ShardsGiveSlicesOfTheFullResult) {
  const Tensor expected = dropped(full(), step(Group(), 0.3));
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      const Step local_step = step(group, 0.3);
      EXPECT_TRUE(same_bits(dropped(full(), local_step), expected));
      const Tensor shard = slice_of(full(), local_step.sequence, 0, group.rank());
      EXPECT_TRUE(same_bits(dropout(Placed<Sharded<kSequence>>(shard), local_step, kSite).local(),
                            slice_of(expected, local_step.sequence, 0, group.rank())));
    });
  }
}

TEST(Dropout, MasksOutputsAndGradientsAlike) {
  const Tensor x = full().requires_grad_(), dy = random_tensor({kSequenceLength, 2, kHidden}, 2);
  const Tensor y = dropped(x, step(Group(), 0.25));
  y.backward(dy);
  const Tensor is_kept = y.detach().ne(0);
  EXPECT_LE(testing::relative_error(y, full() * is_kept / 0.75), 1e-15);
  EXPECT_LE(testing::relative_error(x.grad(), dy * is_kept / 0.75), 1e-15);
  EXPECT_GT(is_kept.sum().item<int64_t>(), 0);
  EXPECT_LT(is_kept.sum().item<int64_t>(), is_kept.numel());
}

TEST(Dropout, ProbabilityZeroReturnsTheInput) {
  const Tensor x = full().requires_grad_();
  EXPECT_TRUE(dropped(x, step(Group(), 0)).is_same(x));
}

TEST(Dropout, DiscardedOutputMasksOnlyTheGradient) {
  const Tensor x = full().requires_grad_(), same = full().requires_grad_(),
               dy = random_tensor({kSequenceLength, 2, kHidden}, 2);
  const Tensor y = dropout(Placed<Invariant>(x), step(Group(), 0.25), kSite, OutputUse::discarded).local();
  EXPECT_EQ(y.const_data_ptr(), x.const_data_ptr());
  y.backward(dy);
  dropped(same, step(Group(), 0.25)).backward(dy);
  EXPECT_TRUE(same_bits(x.grad(), same.grad()));
}

TEST(Dropout, DropsTheGivenFraction) {
  const Tensor y = dropped(at::ones({100, 20, 50}, at::kDouble), step(Group(), 0.1, 100));
  EXPECT_NEAR(y.eq(0).to(at::kDouble).mean().item<double>(), 0.1, 5 * std::sqrt(0.1 * 0.9 / y.numel()));
}

std::vector<DropoutSite> sites(int64_t layers) {
  std::vector<DropoutSite> sites = {{-1, DropoutSite::Site::embedding}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    sites.push_back({layer, DropoutSite::Site::attention_output});
    sites.push_back({layer, DropoutSite::Site::mlp_output});
    sites.push_back({layer, DropoutSite::Site::attention_probabilities});
  }
  return sites;
}

// Masks of different sites and steps, also shifted ones, are uncorrelated.
TEST(Dropout, SitesAndStepsHaveIndependentMasks) {
  std::vector<Tensor> masks;
  const auto ones = at::ones({100, 10, 10}, at::kDouble);
  for (const uint64_t key : {11, 12}) {
    for (const DropoutSite& site : sites(3)) {
      Step local_step(Group(), 100, kernels::RandomKey::of(key));
      local_step.dropout = 0.5;
      masks.push_back((dropped(ones, local_step, site) - 1).flatten());  // ±1
    }
  }
  const double chance = 5 / std::sqrt(10000.0);
  for (size_t i = 0; i < masks.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      EXPECT_LE(std::abs(testing::dot(masks[i], masks[j]) / 10000), chance) << i << ", " << j;
    const Tensor shifted = at::cat({masks[i].narrow(0, 1, 9999), masks[i].narrow(0, 0, 1)}, 0);
    EXPECT_LE(std::abs(testing::dot(masks[i], shifted) / 10000), chance) << i << " is periodic";
  }
}

TEST(Dropout, SitesHaveDistinctKeys) {
  std::set<uint64_t> keys;
  const std::vector<DropoutSite> all = sites(200);
  for (const DropoutSite& site : all) keys.insert(mask_key(kernels::RandomKey::of(1), site).value);
  EXPECT_EQ(keys.size(), all.size());
}

TEST(Dropout, HasAProbability) {
  for (const double p : {0.0, 0.5, 1.0}) EXPECT_NO_THROW(check_step(step(Group(), p), /*b=*/1)) << p;
  for (const double p : {-0.1, 1.1})
    EXPECT_THROW(check_step(step(Group(), p), /*b=*/1), c10::ValueError) << p;
}

}  // namespace
}  // namespace shardwise::nn::dropout_test

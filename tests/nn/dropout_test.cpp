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
constexpr DropoutSite kPlace{3, DropoutSite::mlp_output};

Step step(const Group& group, double p, int64_t sequence = kSequenceLength) {
  Step step(group, sequence, kernels::RandomKey::of(11));
  step.dropout = p;
  return step;
}

Tensor whole() {
  return random_tensor({kSequenceLength, 2, kHidden}, 1);
}

Tensor dropped(const Tensor& x, const Step& step, const DropoutSite& place = kPlace) {
  return dropout(Placed<Invariant>(x), step, place).local();
}

TEST(Dropout, OfShardsIsTheSliceOfTheWholeOnEveryStream) {
  const Tensor expected = dropped(whole(), step(Group(), 0.3));
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      const Step own = step(group, 0.3);
      EXPECT_TRUE(same_bits(dropped(whole(), own), expected));
      const Tensor shard = slice_of(whole(), own.sequence, 0, group.rank());
      EXPECT_TRUE(same_bits(dropout(Placed<Sharded<kSequence>>(shard), own, kPlace).local(),
                            slice_of(expected, own.sequence, 0, group.rank())));
    });
  }
}

TEST(Dropout, KeepsOrScalesEveryElementAndItsGradientAlike) {
  const Tensor x = whole().requires_grad_(), dy = random_tensor({kSequenceLength, 2, kHidden}, 2);
  const Tensor y = dropped(x, step(Group(), 0.25));
  y.backward(dy);
  const Tensor is_kept = y.detach().ne(0);
  EXPECT_LE(testing::relative_error(y, whole() * is_kept / 0.75), 1e-15);
  EXPECT_LE(testing::relative_error(x.grad(), dy * is_kept / 0.75), 1e-15);
  EXPECT_GT(is_kept.sum().item<int64_t>(), 0);
  EXPECT_LT(is_kept.sum().item<int64_t>(), is_kept.numel());
}

TEST(Dropout, OfProbabilityZeroIsTheInputItself) {
  const Tensor x = whole().requires_grad_();
  EXPECT_TRUE(dropped(x, step(Group(), 0)).is_same(x));
}

TEST(Dropout, OfAnUnusedValueMasksTheGradientAlone) {
  const Tensor x = whole().requires_grad_(), same = whole().requires_grad_(),
               dy = random_tensor({kSequenceLength, 2, kHidden}, 2);
  const Tensor y = dropout(Placed<Invariant>(x), step(Group(), 0.25), kPlace, OutputUse::discarded).local();
  EXPECT_EQ(y.const_data_ptr(), x.const_data_ptr());
  y.backward(dy);
  dropped(same, step(Group(), 0.25)).backward(dy);
  EXPECT_TRUE(same_bits(x.grad(), same.grad()));
}

TEST(Dropout, DropsTheShareThatItSays) {
  const Tensor y = dropped(at::ones({100, 20, 50}, at::kDouble), step(Group(), 0.1, 100));
  EXPECT_NEAR(y.eq(0).to(at::kDouble).mean().item<double>(), 0.1, 5 * std::sqrt(0.1 * 0.9 / y.numel()));
}

std::vector<DropoutSite> places(int64_t layers) {
  std::vector<DropoutSite> places = {{-1, DropoutSite::embedding}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    places.push_back({layer, DropoutSite::attention_output});
    places.push_back({layer, DropoutSite::mlp_output});
    places.push_back({layer, DropoutSite::attention_probabilities});
  }
  return places;
}

// No place of a model, and no step, shares another's mask, nor a shifted one: their correlation is that of
// chance.
TEST(Dropout, PlacesAndStepsDrawIndependentMasks) {
  std::vector<Tensor> masks;
  const auto ones = at::ones({100, 10, 10}, at::kDouble);
  for (const uint64_t key : {11, 12}) {
    for (const DropoutSite& place : places(3)) {
      Step own(Group(), 100, kernels::RandomKey::of(key));
      own.dropout = 0.5;
      masks.push_back((dropped(ones, own, place) - 1).flatten());  // ±1
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

TEST(Dropout, NoTwoPlacesShareAKey) {
  std::set<uint64_t> keys;
  const std::vector<DropoutSite> all = places(200);
  for (const DropoutSite& place : all) keys.insert(mask_key(kernels::RandomKey::of(1), place).value);
  EXPECT_EQ(keys.size(), all.size());
}

}  // namespace
}  // namespace shardwise::nn::dropout_test

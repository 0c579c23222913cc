#include "shardwise/parallel/gradient_sync.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::gradient_sync_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::same_bits;
using testing::slice_of;

// The kinds of parameters in a model. Several ranks hold a KV head if there are more ranks than KV heads or a
// group of query heads is split; a vocabulary of 2 leaves some ranks without a row.
struct Model {
  Group group;
  Split heads = Split::even("heads", 6, group.size());
  Split kv_heads = Split::kv_heads_of(heads, 3);
  Split vocab = Split::even("vocab", 2, group.size());
  static constexpr int64_t kHeadDim = 2, kHidden = 5;

  ShardRule qkv() const { return {0, {{heads, kHeadDim}, {kv_heads, kHeadDim}, {kv_heads, kHeadDim}}}; }
  std::vector<int64_t> qkv_shape() const { return {(6 + 3 + 3) * kHeadDim, kHidden}; }

  ParameterPtr make(const std::string& name, const std::vector<int64_t>& shape, const ShardRule& rule) const {
    const ParameterPtr parameter = make_parameter(name, shape, rule, Init::constant(0), group, at::kDouble);
    zero_grad_(*parameter);
    return parameter;
  }

  struct Specs {
    ParamSpec qkv, table, norm, frozen;
    ParamSpecs all() const { return {qkv, table, norm, frozen}; }
  };
  Specs specs(GradientKind norm_gradient) const {
    Specs specs{
        ParamSpec::over_tp(make("qkv", qkv_shape(), qkv()), GradientKind::sharded),
        ParamSpec::over_tp(make("table", {2, kHidden}, ShardRule::sharded(0, vocab)), GradientKind::sharded),
        ParamSpec::over_tp(make("norm", {kHidden}, ShardRule::replicated()), norm_gradient),
        ParamSpec::over_tp(make("frozen", {kHidden}, ShardRule::replicated()), norm_gradient)};
    specs.frozen.parameter->main_grad.reset();
    return specs;
  }

  // The partial gradient of `rank`: a multiple of a full random tensor.
  Tensor partial(const std::vector<int64_t>& shape, uint64_t seed, int rank) const {
    return random_tensor(shape, seed) * (rank + 1);
  }
};

void for_each_group(const std::function<void(const Model&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      check({group});
      check({group.without_symmetric_heap()});
    });
  }
}

// The sum of the partial gradients over the ranks that hold each KV head, for this rank's shard.
Tensor summed_over_holders(const Model& model, const Tensor& full) {
  Tensor multiples = at::zeros_like(full);
  for (int64_t head = 0; head < 3; ++head) {
    double multiple = 0;
    for (const int rank : model.kv_heads.holders(head)) multiple += rank + 1;
    for (const int64_t segment_begin : {12, 18}) {
      multiples.narrow(0, segment_begin + head * Model::kHeadDim, Model::kHeadDim).fill_(multiple);
    }
  }
  const int rank = model.group.rank();
  multiples.narrow(0, 0, 12).fill_(rank + 1);  // query heads have one holder each
  return slice_of(full * multiples, model.qkv(), rank);
}

TEST(GradientSync, SumsOnlyPartialsAndReplicatedHeads) {
  for_each_group([](const Model& model) {
    const int rank = model.group.rank(), ranks = model.group.size();
    const auto specs = model.specs(GradientKind::partial);
    specs.qkv.parameter->main_grad.copy_(
        slice_of(model.partial(model.qkv_shape(), 1, rank), model.qkv(), rank));
    specs.table.parameter->main_grad.fill_(rank + 1);
    specs.norm.parameter->main_grad.copy_(model.partial({Model::kHidden}, 2, rank));
    sync_gradients_(specs.all(), model.group);

    const Tensor expected = summed_over_holders(model, random_tensor(model.qkv_shape(), 1));
    EXPECT_LE(testing::relative_error(specs.qkv.parameter->main_grad, expected), 1e-15);
    const double sum = ranks * (ranks + 1) / 2.0;
    EXPECT_LE(
        testing::relative_error(specs.norm.parameter->main_grad, random_tensor({Model::kHidden}, 2) * sum),
        1e-15);
    EXPECT_EQ((specs.table.parameter->main_grad - (rank + 1)).abs().sum().item<double>(), 0);
    EXPECT_FALSE(specs.frozen.parameter->main_grad.defined());
  });
}

TEST(GradientSync, LeavesInvariantGradientsUnchanged) {
  for_each_group([](const Model& model) {
    const auto specs = model.specs(GradientKind::invariant);
    specs.norm.parameter->main_grad.fill_(3);
    sync_gradients_(specs.all(), model.group);
    EXPECT_EQ((specs.norm.parameter->main_grad - 3).abs().sum().item<double>(), 0);
  });
}

TEST(GradientSync, MakesReplicasEqualBitForBit) {
  for_each_group([](const Model& model) {
    const auto specs = model.specs(GradientKind::partial);
    specs.norm.parameter->main_grad.copy_(random_tensor({Model::kHidden}, 10 + model.group.rank()));
    sync_gradients_(specs.all(), model.group);
    Tensor first = specs.norm.parameter->main_grad.clone();
    model.group.broadcast_(first, 0);
    EXPECT_TRUE(same_bits(specs.norm.parameter->main_grad, first));
  });
}

TEST(GradientSync, TakesOneAllReduceOrNone) {
  for (const int ranks : {2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& group) {
      const Model model{group};
      const auto calls = [&](const ParamSpecs& specs) {
        const comm::Counters before = group.counters();
        sync_gradients_(specs, group);
        const comm::Counters used = group.counters() - before;
        EXPECT_EQ(used.total().calls, used[Op::all_reduce].calls);
        return used[Op::all_reduce];
      };
      const comm::OpCount all = calls(model.specs(GradientKind::partial).all());
      EXPECT_EQ(all.calls, 1);
      const bool has_replicas = !model.kv_heads.is_partition();
      // On 2 and on 4 ranks two ranks hold one of the three KV heads: two rows of k and two of v.
      const int64_t elements = (has_replicas ? 2 * 2 * Model::kHidden : 0) + Model::kHidden;
      const int64_t local = Split::even("message", elements, group.size()).range(group.rank()).size();
      EXPECT_EQ(all.bytes, 8 * (local * (group.size() - 1) + elements - local));
      EXPECT_EQ(calls({model.specs(GradientKind::invariant).table}).calls, 0);
      EXPECT_EQ(calls({model.specs(GradientKind::invariant).norm}).calls, 0);
      EXPECT_EQ(calls({}).calls, 0);
    });
  }
}

struct Expected {
  NormOrder norm;
  double order;
};

TEST(GradientNorm, CountsEachElementOfTheUnshardedModelOnce) {
  for_each_group([](const Model& model) {
    const int rank = model.group.rank();
    const auto specs = model.specs(GradientKind::partial);
    const Tensor qkv = random_tensor(model.qkv_shape(), 1), table = random_tensor({2, Model::kHidden}, 2);
    const Tensor norm = random_tensor({Model::kHidden}, 3);
    specs.qkv.parameter->main_grad.copy_(slice_of(qkv, model.qkv(), rank));
    specs.table.parameter->main_grad.copy_(slice_of(table, model.vocab, 0, rank));
    specs.norm.parameter->main_grad.copy_(norm);
    double one = 0, two = 0, inf = 0;
    for (const Tensor& each : {qkv, table, norm}) {
      one += each.abs().sum().item<double>();
      two += (each * each).sum().item<double>();
      inf = std::max(inf, each.abs().max().item<double>());
    }
    EXPECT_NEAR(gradient_norm(specs.all(), NormOrder::one, model.group), one, 1e-13 * one);
    EXPECT_NEAR(gradient_norm(specs.all(), NormOrder::two, model.group), std::sqrt(two),
                1e-14 * std::sqrt(two));
    EXPECT_EQ(gradient_norm(specs.all(), NormOrder::inf, model.group), inf);
  });
}

TEST(GradientNorm, IsBitIdenticalOnEveryRankAndTakesOneAllReduce) {
  testing::on_ranks(4, [](const Group& group) {
    const Model model{group};
    const auto specs = model.specs(GradientKind::partial);
    specs.qkv.parameter->main_grad.copy_(
        slice_of(random_tensor(model.qkv_shape(), 1), model.qkv(), group.rank()));
    for (const NormOrder norm : {NormOrder::one, NormOrder::two, NormOrder::inf}) {
      const comm::Counters before = group.counters();
      const double value = gradient_norm(specs.all(), norm, group);
      EXPECT_EQ((group.counters() - before)[Op::all_reduce].calls, 1);
      EXPECT_EQ((group.counters() - before).total().calls, 1);
      Tensor first = at::full({1}, value, at::kDouble);
      group.broadcast_(first, 0);
      EXPECT_EQ(first.item<double>(), value);
    }
  });
}

TEST(GradientNorm, NaNOrInfMakesItNotFiniteOnEveryRank) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    testing::on_ranks(3, [&](const Group& group) {
      const Model model{group};
      for (const int bad_rank : {0, 1, 2}) {
        const auto specs = model.specs(GradientKind::partial);
        if (group.rank() == bad_rank) specs.qkv.parameter->main_grad[0][0] = bad;
        for (const NormOrder norm : {NormOrder::one, NormOrder::two, NormOrder::inf}) {
          EXPECT_FALSE(std::isfinite(gradient_norm(specs.all(), norm, group)));
        }
      }
    });
  }
}

TEST(ClipGradients, ScalesToMaxNormIfAboveIt) {
  const Model model{Group()};
  const auto specs = model.specs(GradientKind::partial);
  specs.norm.parameter->main_grad.fill_(2);
  clip_gradients_(specs.all(), /*norm=*/10, /*max_norm=*/1);
  EXPECT_TRUE(same_bits(specs.norm.parameter->main_grad,
                        at::full({Model::kHidden}, 2.0, at::kDouble) * (1 / (10 + 1e-6))));
  const Tensor before = specs.norm.parameter->main_grad.clone();
  clip_gradients_(specs.all(), /*norm=*/0.5, /*max_norm=*/1);
  EXPECT_TRUE(same_bits(specs.norm.parameter->main_grad, before))
      << "clipped although the norm is below the maximum";
}

}  // namespace
}  // namespace shardwise::parallel::gradient_sync_test

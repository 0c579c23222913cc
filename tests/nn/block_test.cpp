// The collectives and bytes of a block. model/grid_test checks its values.
#include "shardwise/nn/block.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "tests/support/cases.h"
#include "tests/support/layers.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::block_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using testing::local_rows;
using testing::Path;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;
using testing::Used;
using testing::with_bias;

constexpr int64_t kSequenceLength = 7, kBatch = 2, kHidden = 6, kHeadDim = 4, kFfn = 9;

BlockLayers make_layers(const Group& group) {
  const Split heads = Split::even("heads", 4, group.size()), kv = Split::kv_heads_of(heads, 2);
  const Split ffn = Split::even("ffn", kFfn, group.size());
  const ShardRule qkv{0, {{heads, kHeadDim}, {kv, kHeadDim}, {kv, kHeadDim}}}, gate_up{0, {{ffn}, {ffn}}};
  BlockLayers layers{
      0,
      RMSNorm("norm1", kHidden, 1e-5, group, at::kDouble),
      {"qkv", {kHidden, 8 * kHeadDim}, qkv, group, at::kDouble},
      {HeadLayout::of(heads, kv, kHeadDim, group.rank()),
       std::make_shared<Rotary>(std::vector<double>{1.0, 0.1})},
      {"out", {4 * kHeadDim, kHidden}, ShardRule::sharded(1, heads, kHeadDim), group, at::kDouble},
      RMSNorm("norm2", kHidden, 1e-5, group, at::kDouble),
      GatedMlp({"gate_up", {kHidden, 2 * kFfn}, gate_up, group, at::kDouble},
               {"down", {kFfn, kHidden}, ShardRule::sharded(1, ffn), group, at::kDouble})};
  UsedParameters parameters;
  layers.append_parameters(parameters);
  for (const UsedParameter& used : parameters) {
    parallel::initialize_(*used.parameter, kernels::RandomKey::of(1), group);
    parallel::zero_grad_(*used.parameter);
  }
  return layers;
}

// A block like GPT-2's: LayerNorm, biases, GeLU.
BlockLayers make_gelu_layers(const Group& group) {
  const Split heads = Split::even("heads", 4, group.size()), ffn = Split::even("ffn", kFfn, group.size());
  const int64_t width = 4 * kHeadDim;
  const ShardRule qkv{0, {{heads, kHeadDim}, {heads, kHeadDim}, {heads, kHeadDim}}};
  return {
      0,
      LayerNorm("norm1", kHidden, 1e-5, group, at::kDouble),
      {"qkv", with_bias(kHidden, 3 * width), qkv, group, at::kDouble},
      {HeadLayout::of(heads, heads, kHeadDim, group.rank()), std::make_shared<Rotary>(std::vector<double>{})},
      {"out", with_bias(width, kHidden), ShardRule::sharded(1, heads, kHeadDim), group, at::kDouble},
      LayerNorm("norm2", kHidden, 1e-5, group, at::kDouble),
      GeluMlp({"up", with_bias(kHidden, kFfn), ShardRule::sharded(0, ffn), group, at::kDouble},
              {"down", with_bias(kFfn, kHidden), ShardRule::sharded(1, ffn), group, at::kDouble},
              kernels::Gelu::tanh)};
}

Tensor causal_attention(const Tensor& qkv) {
  const auto heads = [&](const Tensor& x) { return x.unflatten(-1, {4, kHeadDim}).permute({1, 2, 0, 3}); };
  const auto parts = qkv.chunk(3, -1);
  const Tensor scores = heads(parts[0]).matmul(heads(parts[1]).transpose(-1, -2)) / std::sqrt(1.0 * kHeadDim);
  const Tensor future = at::ones({kSequenceLength, kSequenceLength}, at::kBool).triu(1);
  const Tensor weights = at::softmax(scores.masked_fill(future, -INFINITY), -1);
  return weights.matmul(heads(parts[2])).permute({2, 0, 1, 3}).flatten(2);
}

// `p`: the parameters in the order of append_parameters.
Tensor gelu_block(const Tensor& input, const std::vector<Tensor>& p) {
  const auto norm = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return at::layer_norm(x, {kHidden}, weight, bias, 1e-5);
  };
  const Tensor qkv = at::linear(norm(input, p[0], p[1]), p[2], p[3]);
  const Tensor x = input + at::linear(causal_attention(qkv), p[4], p[5]);
  const Tensor inner = at::gelu(at::linear(norm(x, p[6], p[7]), p[8], p[9]), "tanh");
  return x + at::linear(inner, p[10], p[11]);
}

template <ResidualStream Stream>
void check_gelu_block(const Group& group, Path path) {
  const BlockLayers layers = make_gelu_layers(group);
  UsedParameters parameters;
  layers.append_parameters(parameters);
  std::vector<Tensor> leaves;
  for (const UsedParameter& used : parameters) {
    const at::NoGradGuard no_grad;
    parallel::Parameter& parameter = *used.parameter;
    leaves.push_back(random_tensor(parameter.global_shape, leaves.size()) / 2);
    parameter.value.copy_(slice_of(leaves.back(), parameter.rule, group.rank()));
    parallel::zero_grad_(parameter);
    leaves.back().requires_grad_();
  }
  const Step step =
      testing::make_step(group, path, kSequenceLength, kernels::RandomKey::of(1), /*dropout=*/0);
  const auto local = [&](const Tensor& x) { return local_rows<Stream>(x, step); };
  const std::vector<int64_t> shape = {kSequenceLength, kBatch, kHidden};
  const Tensor full_x = random_tensor(shape, 21).requires_grad_(), dy = random_tensor(shape, 22);
  const Tensor expected = gelu_block(full_x, leaves), x = local(full_x).requires_grad_();
  expected.backward(dy);
  const Tensor y = Block<Stream>(layers)(Placed<Stream>(x), step).local();
  y.backward(local(dy));
  parallel::sync_gradients_(specs_of<Stream>(parameters), group);
  EXPECT_LE(relative_error(y, local(expected)), 1e-12);
  EXPECT_LE(relative_error(x.grad(), local(full_x.grad())), 1e-12);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const parallel::Parameter& parameter = *parameters[i].parameter;
    EXPECT_LE(relative_error(parameter.main_grad, slice_of(leaves[i].grad(), parameter.rule, group.rank())),
              1e-12)
        << parameter.name;
  }
}

TEST(Block, WithLayerNormBiasesAndGeluEqualsItsFormula) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& group) {
      for (const Path path : testing::kPaths) {
        check_gelu_block<Invariant>(group, path);
        check_gelu_block<Sharded<kSequence>>(group, path);
      }
    });
  }
}

// Full recomputation uses copies of the layers that the graph owns.
TEST(Block, LayersMayBeDestroyedBeforeBackward) {
  const auto gradient = [](bool drops_layers) {
    auto layers = std::make_unique<BlockLayers>(make_layers(Group()));
    Step step(Group(), kSequenceLength);
    step.recompute = base::Recompute::full;
    const Tensor x = random_tensor({kSequenceLength, kBatch, kHidden}, 1).requires_grad_();
    const Tensor y = Block<Invariant>(*layers)(Placed<Invariant>(x), step).local();
    if (drops_layers) layers.reset();
    y.backward(random_tensor({kSequenceLength, kBatch, kHidden}, 2));
    return x.grad();
  };
  EXPECT_TRUE(testing::same_bits(gradient(true), gradient(false)));
}

template <ResidualStream Stream>
Used run(const Group& ranks, Path path) {
  const Group group = ranks.with_new_counters();
  const BlockLayers layers = make_layers(group);
  Step step = testing::make_step(group, path, kSequenceLength, kernels::RandomKey::of(1), /*dropout=*/0.1);
  const Tensor full = random_tensor({kSequenceLength, kBatch, kHidden}, 1);
  const Tensor x = local_rows<Stream>(full, step).requires_grad_();
  return testing::used(step.group, [&] { return Block<Stream>(layers)(Placed<Stream>(x), step).local(); });
}

// The bytes of collectives over [s, b, h], by docs/algorithms.md.
struct Message {
  Group group;
  int64_t total() const { return kSequenceLength * kBatch * kHidden * 8; }
  int64_t local_rows() const {
    return Split::even("sequence", kSequenceLength, group.size()).range(group.rank()).size() * kBatch *
           kHidden * 8;
  }
  int64_t all_gather() const { return local_rows() * (group.size() - 1); }
  int64_t reduce_scatter() const { return total() - local_rows(); }
  int64_t all_reduce() const {
    const int64_t local = Split::even("message", total() / 8, group.size()).range(group.rank()).size() * 8;
    return local * (group.size() - 1) + total() - local;
  }
};

void expect(const comm::Counters& used, Op op, int64_t calls, int64_t bytes_each) {
  EXPECT_EQ(used[op].calls, calls) << name(op);
  EXPECT_EQ(used[op].bytes, calls * bytes_each) << name(op);
}

void for_each_path(const std::function<void(const Group&, Path)>& check) {
  for (const int ranks : {2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      for (const Path path : testing::kPaths) check(group, path);
    });
  }
}

TEST(Block, UnderTpAllReducesTwiceInEachDirection) {
  for_each_path([](const Group& group, Path path) {
    const Used used = run<Invariant>(group, path);
    for (const comm::Counters& way : {used.forward, used.backward}) {
      expect(way, Op::all_reduce, 2, Message{group}.all_reduce());
      EXPECT_EQ(way.total().calls, 2);
    }
  });
}

TEST(Block, UnderSpAllGathersAndReduceScattersTwiceInEachDirection) {
  for_each_path([](const Group& group, Path path) {
    const Used used = run<Sharded<kSequence>>(group, path);
    const Message message{group};
    expect(used.forward, Op::all_gather, 2, message.all_gather());
    expect(used.forward, Op::reduce_scatter, 2, message.reduce_scatter());
    EXPECT_EQ(used.forward.total().calls, 4);
    // The two column inputs are gathered again for the weight gradients unless the gathered ones were saved.
    const int64_t gathers = path == Path::gathered ? 2 : 4;
    expect(used.backward, Op::all_gather, gathers, message.all_gather());
    expect(used.backward, Op::reduce_scatter, 2, message.reduce_scatter());
    EXPECT_EQ(used.backward.total().calls, gathers + 2);
  });
}

struct Stages {
  std::vector<Tensor> seen;
  Observer observer = [this](const Stage&, const Tensor& local) { seen.push_back(local.detach().clone()); };
};

struct SumAndNorm {
  Tensor sum, norm;
};

/// Two blocks and a norm, which can complete their deferred reductions.
template <ResidualStream Stream>
SumAndNorm two_blocks(const BlockLayers& layers, const Tensor& input, const Step& step,
                      const Observer* observer = nullptr) {
  DeferredReduction<Stream> x{Placed<Stream>(input)};
  for (int i = 0; i < 2; ++i) x = run_block(layers, std::move(x), step, observer);
  const Tensor norm = layers.norm1(x, step).local();
  return {x.value->local(), norm};
}

template <ResidualStream Stream>
void check_deferred_reductions(const BlockLayers& layers, const Step& step) {
  const Tensor full = random_tensor({kSequenceLength, kBatch, kHidden}, 1);
  const auto added = [&](const std::function<void()>& forward) {
    const comm::Counters before = step.group.counters();
    forward();
    return step.group.counters() - before;
  };
  Tensor x, norm;
  const comm::Counters recorded = added([&] {
    const auto y = two_blocks<Stream>(layers, local_rows<Stream>(full, step).requires_grad_(), step);
    x = y.sum.detach(), norm = y.norm.detach();
  });
  const at::NoGradGuard no_grad;
  const comm::Counters deferred = added([&] {
    const auto y = two_blocks<Stream>(layers, local_rows<Stream>(full, step), step);
    EXPECT_TRUE(testing::same_bits(y.sum, x));
    EXPECT_TRUE(testing::same_bits(y.norm, norm));
  });
  for (int op = 0; op < comm::kCountedOps; ++op) {
    EXPECT_EQ(deferred.ops[op].calls, recorded.ops[op].calls) << name(Op(op));
    EXPECT_EQ(deferred.ops[op].bytes, recorded.ops[op].bytes) << name(Op(op));
  }
  if (step.group.has_symmetric_heap()) {
    EXPECT_EQ(deferred.total().copied_bytes, 0);
  }
  Stages stages;  // are shown the sums
  const auto y = two_blocks<Stream>(layers, local_rows<Stream>(full, step), step, &stages.observer);
  EXPECT_EQ(stages.seen.size(), 4u);
  EXPECT_TRUE(testing::same_bits(stages.seen.back(), x));
  EXPECT_TRUE(testing::same_bits(y.norm, norm));
}

// Bits, traffic and copies equal those of the separate ops.
TEST(Block, DefersReductionsToTheNormsWithoutGradients) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& ranks_group) {
      for (const Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) {
        const Step step(group, kSequenceLength);
        const BlockLayers layers = make_layers(group);
        check_deferred_reductions<Invariant>(layers, step);
        check_deferred_reductions<Sharded<kSequence>>(layers, step);
      }
    });
  }
}

// LayerNorm reduces before it normalizes, and with dropout nothing is deferred. The bits equal those with
// gradients.
TEST(Block, ReducesBeforeTheNormWithoutAFusedPass) {
  testing::on_ranks(3, [](const Group& group) {
    const BlockLayers gelu = make_gelu_layers(group), gated = make_layers(group);
    UsedParameters parameters;
    gelu.append_parameters(parameters);
    for (const UsedParameter& used : parameters)
      parallel::initialize_(*used.parameter, kernels::RandomKey::of(1), group);
    Step dropping(group, kSequenceLength);
    dropping.dropout = 0.3;
    const Tensor full = random_tensor({kSequenceLength, kBatch, kHidden}, 1);
    const auto compare = [&]<class Stream>(Stream, const BlockLayers& layers, const Step& step) {
      const Tensor with = two_blocks<Stream>(layers, local_rows<Stream>(full, step), step).norm;
      const at::NoGradGuard no_grad;
      const Tensor without = two_blocks<Stream>(layers, local_rows<Stream>(full, step), step).norm;
      EXPECT_TRUE(testing::same_bits(without, with.detach()));
    };
    for (const auto& [layers, step] : {std::pair(&gelu, Step(group, kSequenceLength)), {&gated, dropping}}) {
      compare(Invariant(), *layers, step);
      compare(Sharded<kSequence>(), *layers, step);
    }
  });
}

TEST(Block, GroupOfOneDoesNotCommunicate) {
  const Used used = run<Sharded<kSequence>>(Group(), Path::symmetric);
  EXPECT_EQ(used.forward.total().calls + used.backward.total().calls, 0);
}

}  // namespace
}  // namespace shardwise::nn::block_test

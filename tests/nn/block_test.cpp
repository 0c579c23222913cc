// A block's communication, exactly: which collectives, how many bytes. Its numbers are the grid's
// (model/grid_test).
#include "shardwise/nn/block.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tests/support/cases.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace shardwise::nn {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using testing::Path;
using testing::random_tensor;
using testing::slice_of;

constexpr int64_t kSequenceLength = 7, kBatch = 2, kHidden = 6, kHeadDim = 4, kFfn = 9;

BlockLayers make_layers(const Group& group) {
  const Split heads = Split::even("heads", 4, group.size()), kv = Split::kv_heads_of(heads, 2);
  const Split ffn = Split::even("ffn", kFfn, group.size());
  const ShardRule qkv{0, {{heads, kHeadDim}, {kv, kHeadDim}, {kv, kHeadDim}}}, gate_up{0, {{ffn}, {ffn}}};
  BlockLayers layers{0,
                     {"norm1", kHidden, 1e-5, group, at::kDouble},
                     {"qkv", {kHidden, 8 * kHeadDim}, qkv, group, at::kDouble},
                     {HeadLayout::of(heads, kv, kHeadDim, group.rank()),
                      std::make_shared<Rotary>(std::vector<double>{1.0, 0.1})},
                     {"out", {4 * kHeadDim, kHidden}, ShardRule::cut(1, heads, kHeadDim), group, at::kDouble},
                     {"norm2", kHidden, 1e-5, group, at::kDouble},
                     {{"gate_up", {kHidden, 2 * kFfn}, gate_up, group, at::kDouble},
                      {"down", {kFfn, kHidden}, ShardRule::cut(1, ffn), group, at::kDouble}}};
  Roles roles;
  layers.append_roles(roles);
  for (const Role& role : roles) {
    parallel::initialise_(*role.parameter, kernels::RandomKey::of(1), group);
    parallel::zero_grad_(*role.parameter);
  }
  return layers;
}

struct Used {
  comm::Counters forward, backward;
};

template <ResidualStream Stream>
Used run(const Group& ranks, Path path) {
  const Group group = ranks.with_new_counters();
  const BlockLayers layers = make_layers(group);
  Step step = testing::make_step(group, path, kSequenceLength, kernels::RandomKey::of(1), /*dropout=*/0.1);
  const Tensor whole = random_tensor({kSequenceLength, kBatch, kHidden}, 1);
  const bool is_whole = std::is_same_v<Stream, Invariant>;
  const Tensor x = (is_whole ? whole : slice_of(whole, step.sequence, 0, group.rank())).requires_grad_();
  const comm::Counters before = step.group.counters();
  const Tensor y = Block<Stream>(layers)(Placed<Stream>(x), step).local();
  const comm::Counters between = step.group.counters();
  y.backward(y.detach());
  return {between - before, step.group.counters() - between};
}

// Bytes of [s, b, h] over the ranks by docs/algorithms.md.
struct Message {
  Group group;
  int64_t total() const { return kSequenceLength * kBatch * kHidden * 8; }
  int64_t own_rows() const {
    return Split::even("sequence", kSequenceLength, group.size()).range(group.rank()).size() * kBatch *
           kHidden * 8;
  }
  int64_t all_gather() const { return own_rows() * (group.size() - 1); }
  int64_t reduce_scatter() const { return total() - own_rows(); }
  int64_t all_reduce() const {
    const int64_t own = Split::even("message", total() / 8, group.size()).range(group.rank()).size() * 8;
    return own * (group.size() - 1) + total() - own;
  }
};

void expect(const comm::Counters& used, Op op, int64_t calls, int64_t bytes_each) {
  EXPECT_EQ(used[op].calls, calls) << name(op);
  EXPECT_EQ(used[op].bytes, calls * bytes_each) << name(op);
}

void for_each_path(const std::function<void(const Group&, Path)>& check) {
  for (const int ranks : {2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      for (const Path path : {Path::symmetric, Path::keep, Path::again}) check(group, path);
    });
  }
}

TEST(Block, UnderTpReducesTwiceEachWay) {
  for_each_path([](const Group& group, Path path) {
    const Used used = run<Invariant>(group, path);
    for (const comm::Counters& way : {used.forward, used.backward}) {
      expect(way, Op::all_reduce, 2, Message{group}.all_reduce());
      EXPECT_EQ(way.total().calls, 2);
    }
  });
}

TEST(Block, UnderSequenceParallelismGathersAndScattersTwiceEachWay) {
  for_each_path([](const Group& group, Path path) {
    const Used used = run<Sharded<kSequence>>(group, path);
    const Message message{group};
    expect(used.forward, Op::all_gather, 2, message.all_gather());
    expect(used.forward, Op::reduce_scatter, 2, message.reduce_scatter());
    EXPECT_EQ(used.forward.total().calls, 4);
    // The two column inputs are read once more for their weight gradients unless they were kept whole.
    const int64_t gathers = path == Path::keep ? 2 : 4;
    expect(used.backward, Op::all_gather, gathers, message.all_gather());
    expect(used.backward, Op::reduce_scatter, 2, message.reduce_scatter());
    EXPECT_EQ(used.backward.total().calls, gathers + 2);
  });
}

TEST(Block, AloneCommunicatesNothing) {
  const Used used = run<Sharded<kSequence>>(Group(), Path::symmetric);
  EXPECT_EQ(used.forward.total().calls + used.backward.total().calls, 0);
}

}  // namespace
}  // namespace shardwise::nn

// One block under TP and TP+SP: the same weights, code and results. The type of the residual stream selects
// the collectives.
#include <ATen/ops/randn.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "shardwise/comm/shm/shm.h"
#include "shardwise/nn/block.h"

using at::Tensor;
using shardwise::base::ShardRule;
using shardwise::base::Split;
using namespace shardwise::nn;
namespace comm = shardwise::comm;

constexpr int kRanks = 2;
constexpr int64_t s = 7, b = 2, h = 32, a = 6, k = 3, d = 8, f = 41;  // s, k, f: not divisible by two

BlockLayers make_block(const comm::Group& group) {
  const Split heads = Split::even("heads", a, kRanks), kv = Split::kv_heads_of(heads, k);
  const Split ffn = Split::even("ffn", f, kRanks);
  const ShardRule qkv{/*dim=*/0, {{heads, d}, {kv, d}, {kv, d}}}, gate_up{/*dim=*/0, {{ffn}, {ffn}}};
  const auto rotary = std::make_shared<Rotary>(std::vector<double>{1, 0.1, 0.01, 0.001});
  BlockLayers block{
      /*layer=*/0,
      RMSNorm("norm1", h, /*eps=*/1e-5, group, at::kFloat),
      ColumnParallelLinear("qkv", {h, (a + 2 * k) * d}, qkv, group, at::kFloat),
      CausalSelfAttention(HeadLayout::of(heads, kv, d, group.rank()), rotary),
      RowParallelLinear("out", {a * d, h}, ShardRule::sharded(/*dim=*/1, heads, d), group, at::kFloat),
      RMSNorm("norm2", h, /*eps=*/1e-5, group, at::kFloat),
      GatedMlp(ColumnParallelLinear("gate_up", {h, 2 * f}, gate_up, group, at::kFloat),
               RowParallelLinear("down", {f, h}, ShardRule::sharded(/*dim=*/1, ffn), group, at::kFloat))};
  UsedParameters parameters;
  block.append_parameters(parameters);
  for (const UsedParameter& used : parameters) {
    initialize_(*used.parameter, shardwise::kernels::RandomKey::of(1), group);
    zero_grad_(*used.parameter);
  }
  return block;
}

/// Runs forward and backward, prints what this rank sent, and returns y and the gradient of x.
template <ResidualStream Stream>
auto run(const char* name, const BlockLayers& layers, const Tensor& x, const comm::Group& group) {
  const auto before = group.counters();
  const Tensor input = x.detach().clone().requires_grad_();
  const Placed<Stream> y = Block<Stream>(layers)(Placed<Stream>(input), Step(group, s));
  y.local().sum().backward();
  const auto sent = group.counters() - before;
  for (const auto op : {comm::Op::all_reduce, comm::Op::all_gather, comm::Op::reduce_scatter}) {
    std::printf("rank %d, %-5s: %2ld %-14s of %5ld bytes\n", group.rank(), name, sent[op].calls,
                comm::name(op).data(), sent[op].bytes);
  }
  return std::pair(y.local().detach(), input.grad());
}

bool tp_equals_sp(const Tensor& x, const comm::Group& group) {
  const BlockLayers layers = make_block(group);
  const auto [begin, end] = Step(group, s).local_sequence();
  const auto shard_s = [=](const Tensor& t) { return t.slice(kSequence, begin, end); };
  const auto [y, dx] = run<Invariant>("TP", layers, x, group);
  const auto [y_shard_s, dx_shard_s] = run<Sharded<kSequence>>("TP+SP", layers, shard_s(x), group);
  return shard_s(y).allclose(y_shard_s, 1e-5, 1e-6) && shard_s(dx).allclose(dx_shard_s, 1e-5, 1e-6);
}

int main() {
  const Tensor x = at::randn({s, b, h});
  const std::string job = "block-tp-sp-" + std::to_string(getpid());
  bool same[kRanks] = {};
  const auto on_rank = [&](int rank) {
    same[rank] = tp_equals_sp(x, comm::shm::connect({job, rank, kRanks}));
  };
  std::thread other(on_rank, 1);
  on_rank(0);
  other.join();
  std::puts(same[0] && same[1] ? "TP and TP+SP agree" : "TP and TP+SP differ");
  return same[0] && same[1] ? 0 : 1;
}

// Prints what a training step sends: the calls and bytes of each collective as the group counts them, next to
// plan/'s prediction, and the bytes that were copied, which on shared memory are fewer.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "shardwise/comm/shm/shm.h"
#include "shardwise/model/decoder.h"
#include "shardwise/plan/communication.h"

using namespace shardwise::nn;
using shardwise::comm::Op;
namespace comm = shardwise::comm;
namespace config = shardwise::config;
namespace model = shardwise::model;
namespace plan = shardwise::plan;

constexpr int kRanks = 3;
constexpr int64_t s = 64, b = 2;  // 64 positions over 3 ranks: 22, 21 and 21

struct Run {
  comm::Counters counted;
  plan::Collectives planned;
};

template <ResidualStream Stream>
Run forward_backward(plan::Parallelism parallelism, const config::Config& config, const at::Tensor& ids,
                     const comm::Group& group) {
  model::DecoderWeights weights(config, group, at::kFloat);
  weights.initialize_(/*seed=*/1);
  for (const UsedParameter& used : weights.used_parameters()) zero_grad_(*used.parameter);
  const comm::Counters before = group.counters();
  model::Decoder<Stream>(weights).loss(ids, ids, s * b, Step(group, s)).local().backward();
  const plan::Workload workload{
      .config = config, .tp = kRanks, .parallelism = parallelism, .sequence_length = s, .batch_size = b};
  return {group.counters() - before, plan::micro_batch_communication(workload, group.rank()).both()};
}

/// Prints one rank's table and returns true if the counts equal the plan.
bool show(const char* name, const Run& run) {
  bool matches = true;
  std::printf("%-6s             calls   planned       bytes     planned      copied\n", name);
  for (const auto& [op, planned] : {std::pair{Op::all_reduce, run.planned.all_reduce},
                                    {Op::all_gather, run.planned.all_gather},
                                    {Op::reduce_scatter, run.planned.reduce_scatter}}) {
    const comm::OpCount& counted = run.counted[op];
    std::printf("  %-15s %7ld   %7ld %11ld %11ld %11ld\n", comm::name(op).data(), counted.calls,
                planned.calls, counted.bytes, planned.bytes, counted.copied_bytes);
    matches = matches && counted.calls == planned.calls && counted.bytes == planned.bytes;
  }
  const double busy_ms = double(run.counted.busy_ns) / 1e6, waiting_ms = double(run.counted.waiting_ns) / 1e6;
  std::printf("  %.2f ms inside collectives, %.2f of them waiting for peers\n", busy_ms, waiting_ms);
  return matches;
}

bool on_rank(const comm::Group& group, const at::Tensor& ids) {
  at::set_num_threads(1);
  const config::Config config = config::preset("tiny");
  const Run tp = forward_backward<Invariant>(plan::Parallelism::tp, config, ids, group);
  const Run sp = forward_backward<Sharded<kSequence>>(plan::Parallelism::tp_sp, config, ids, group);
  if (group.rank() != 1) return true;
  std::printf("rank 1 of %d, one micro-batch of %ld x %ld tokens\n", kRanks, b, s);
  return show("TP", tp) & show("TP+SP", sp);
}

int main() {
  const at::Tensor ids = at::randint(256, {s, b}, at::kLong);
  const std::string job = "counters-" + std::to_string(getpid());
  bool same[kRanks] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] { same[rank] = on_rank(comm::shm::connect({job, rank, kRanks}), ids); });
  }
  for (std::thread& rank : ranks) rank.join();
  return same[0] && same[1] && same[2] ? 0 : 1;
}

// Parts of a model: the formulas of tensor parallelism's ratio of communication to computation, and weights.
#include "shardwise/plan/part.h"

#include <gtest/gtest.h>

#include <map>

namespace shardwise::plan::part_test {
namespace {

PartWorkload mlp(const MlpShape& shape, int ranks, int64_t s, int64_t b, int64_t element_bytes = 2) {
  Workload workload;
  workload.config = mlp_config(shape, ranks);
  workload.tp = ranks;
  workload.parallelism = Parallelism::tp;
  workload.sequence_length = s;
  workload.batch_size = b;
  workload.element_bytes = element_bytes;
  return {Part::mlp, PassesOf::forward, workload};
}

PartWorkload with_backward(PartWorkload part) {
  part.passes = PassesOf::forward_and_backward;
  return part;
}

/// The ratio of a forward on `machine`.
double ratio(const Machine& machine, int64_t hidden, int ranks) {
  const PartTime time = part_time(mlp({hidden, 4 * hidden, false}, ranks, 2048, 1), machine);
  return time.communication / time.compute;
}

// 4bsd(R − 1)/R bytes and 16bsd²/R FLOP in bf16, so that bytes/FLOP is (R − 1)/(4d) for every b and s.
TEST(PlanPart, RatioOfAnMlpIsFreeOfBatchAndSequence) {
  constexpr double kFlopPerSecond = 187e12, kBytesPerSecond = 227e9;
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int64_t d : {512, 1024, 4096}) {
      for (const auto& [s, b] : {std::pair{128, 16}, {2048, 1}, {4096, 3}}) {
        const PartCosts costs = part_costs(mlp({d, 4 * d, false}, ranks, s, b));
        const int64_t bytes = costs.collectives.total().bytes, all = int64_t{s} * b * d;
        EXPECT_EQ(bytes * ranks, 4 * all * (ranks - 1));
        EXPECT_EQ(costs.flop * ranks, static_cast<double>(16 * all * d));
        EXPECT_EQ(static_cast<double>(bytes * 4 * d), (ranks - 1) * costs.flop);
        const double expected =
            (ranks - 1.0) / static_cast<double>(d) * 2 * kFlopPerSecond / (8 * kBytesPerSecond);
        EXPECT_NEAR(communication_ratio(costs, kFlopPerSecond, kBytesPerSecond), expected, 1e-12 * expected);
      }
    }
  }
}

TEST(PlanPart, BackwardSendsAsMuchAsForwardAndComputesTwice) {
  for (const auto parallelism : {Parallelism::tp, Parallelism::tp_sp}) {
    PartWorkload part = mlp({256, 1024, false}, 4, 64, 2);
    part.workload.parallelism = parallelism;
    const PartCosts forward = part_costs(part), both = part_costs(with_backward(part));
    EXPECT_EQ(both.flop, 3 * forward.flop);
    // Under TP+SP backward gathers the input of the first product again, for its weight gradient.
    const int64_t halves = parallelism == Parallelism::tp ? 2 : 3;
    const int64_t half = forward.collectives.total().bytes / 2;
    EXPECT_EQ(both.collectives.total().bytes, (2 + halves) * half);
    EXPECT_EQ(both.weight_elements, forward.weight_elements);
  }
}

TEST(PlanPart, WeightsOfTheDocumentsMlp) {
  for (const int ranks : {1, 2, 4, 8}) {
    const int64_t elements = part_costs(mlp({4096, 11008, true}, ranks, 128, 16, 4)).weight_elements;
    EXPECT_EQ(elements * ranks, 3 * 4096 * 11008);
    const std::map<int, int64_t> bytes = {{1, 541'065'216}, {2, 270'532'608}};
    if (bytes.contains(ranks)) {
      EXPECT_EQ(elements * 4, bytes.at(ranks));
    }
  }
}

TEST(PlanPart, ABlockHasTwiceTheCollectivesOfItsMlp) {
  PartWorkload part = mlp({}, 1, 512, 2);
  part.workload.config = config::preset("llama-3-8b");
  part.workload.tp = 4;
  for (const auto passes : {PassesOf::forward, PassesOf::forward_and_backward}) {
    part.passes = passes;
    part.part = Part::mlp;
    const PartCosts of_mlp = part_costs(part);
    part.part = Part::block;
    const PartCosts of_block = part_costs(part);
    EXPECT_EQ(of_block.collectives, 2 * of_mlp.collectives);
    EXPECT_GT(of_block.flop, of_mlp.flop);
    // q, k, v and o of 8 query and 2 KV heads, and two norms.
    EXPECT_EQ(of_block.weight_elements - of_mlp.weight_elements, (2 * 8 + 2 * 2) * 128 * 4096 + 2 * 4096);
  }
}

TEST(PlanPart, RatioGrowsWithRanksAndFallsWithWidth) {
  for (const char* name : {"a100", "h100", "p4d"}) {
    const Machine machine = built_in_machine(name);
    for (const int64_t d : {1024, 2048, 4096, 8192}) {
      EXPECT_EQ(ratio(machine, d, 1), 0);
      for (const int ranks : {2, 4, 8, 16}) {
        EXPECT_GT(ratio(machine, d, 2 * ranks), ratio(machine, d, ranks)) << name << d << ranks;
        EXPECT_LT(ratio(machine, 2 * d, ranks), ratio(machine, d, ranks)) << name << d << ranks;
      }
    }
  }
  // Twice the ranks about double the ratio. Beyond a node of 8, p4d's network is slower than NVLink as well.
  const Machine p4d = built_in_machine("p4d");
  EXPECT_LT(ratio(p4d, 8192, 8), 3 * ratio(p4d, 8192, 4));
  EXPECT_GT(ratio(p4d, 8192, 16), 3 * ratio(p4d, 8192, 8));
}

}  // namespace
}  // namespace shardwise::plan::part_test

// The peak memory of a micro-batch in two halves (nn/split_batch.h), measured by the counting allocator,
// against plan/peak. On one rank: no backend of several ranks in shared memory runs this schedule.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shardwise/base/memory_counter.h"
#include "shardwise/config/config.h"
#include "shardwise/config/freeze.h"
#include "shardwise/kernels/bf16_product.h"
#include "shardwise/plan/peak.h"
#include "tests/plan/planned_run.h"
#include "tests/support/ranks.h"

namespace shardwise::plan::split_batch_peak_test {
namespace {

struct Case {
  const char* name;
  int64_t element_bytes, batch_size;
  Recompute recompute = Recompute::none;
  std::vector<std::string> freeze = {};
};

PlannedRun run_of(const Case& c) {
  PlannedRun run;
  Workload& workload = run.workload;
  workload.config = config::preset("tiny");
  workload.parallelism = Parallelism::tp;
  workload.sequence_length = 256;
  workload.batch_size = c.batch_size;
  workload.element_bytes = c.element_bytes;
  workload.recompute = c.recompute;
  workload.split_batch = true;
  workload.wgrad_operand_bytes = kernels::weight_gradient_operand_bytes();
  workload.frozen = {workload.config, config::frozen_by("plan", c.freeze, workload.config).parameters};
  return run;
}

/// The most bytes that are live beside the model states.
struct Peaks {
  int64_t forward = 0, backward = 0;
};

Peaks measured(const PlannedRun& run) {
  Peaks peaks;
  testing::on_ranks(1, [&](const comm::Group& group) {
    const RunningModel model(run, group);
    model.forward().backward();  // fills the rotary tables
    const int64_t before = base::live_bytes();
    base::reset_peak();
    at::Tensor loss = model.forward();
    peaks.forward = base::peak_bytes() - before;
    base::reset_peak();
    loss.backward();
    peaks.backward = base::peak_bytes() - before;
  });
  return peaks;
}

int64_t planned(const Workload& workload) {
  return total(training_peak(workload, /*rank=*/0).private_memory.allocations, Pool::private_memory);
}

/// Returns the planned peak of the blocks' backward; 0 if there is none.
int64_t planned_backward(const Workload& workload) {
  const std::set<std::string> points{"down", "activation", "mlp", "norm2",
                                     "out",  "attention",  "qkv", "norm1"};
  int64_t most = 0;
  for (const MemorySnapshot& snapshot : peak_candidates(workload, /*rank=*/0))
    if (points.contains(snapshot.name))
      most = std::max(most, total(snapshot.allocations, Pool::private_memory));
  return most;
}

class SplitBatchPeak : public ::testing::TestWithParam<Case> {
 public:
  static void SetUpTestSuite() {
    base::install_memory_counter();
    at::set_num_threads(1);  // every thread allocates scratch memory
  }
};

/// As peak.h says: 1 % of the peak, model states included.
TEST_P(SplitBatchPeak, IsWithinOnePercentOfTheMeasuredOne) {
  const PlannedRun run = run_of(GetParam());
  const auto [forward, backward] = measured(run);
  const int64_t states = total(model_states(run.workload, /*rank=*/0));
  const auto all = static_cast<double>(states + std::max(forward, backward));
  EXPECT_NEAR(static_cast<double>(states + planned(run.workload)) / all, 1, 0.01);
}

/// No vendor's product has buffers there: all is counted but the loss and its gradient.
TEST_P(SplitBatchPeak, IsExactInBackward) {
  const PlannedRun run = run_of(GetParam());
  const int64_t expected = planned_backward(run.workload);
  if (expected == 0) return;  // only the head is trained
  EXPECT_NEAR(static_cast<double>(measured(run).backward), static_cast<double>(expected), 16);
}

/// The buffers of one half are live beside what the other half keeps: less than those of the whole batch.
TEST_P(SplitBatchPeak, IsBelowThatOfTheWholeBatch) {
  Workload workload = run_of(GetParam()).workload;
  const int64_t of_halves = planned(workload);
  workload.split_batch = false;
  EXPECT_LT(of_halves, planned(workload));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, SplitBatchPeak,
    ::testing::Values(
        Case{"Fp32", 4, 4}, Case{"Fp32Odd", 4, 3}, Case{"Bf16", 2, 4}, Case{"Bf16Odd", 2, 5},
        Case{"Selective", 4, 4, Recompute::selective}, Case{"AllButHead", 4, 4, Recompute::none, {"model.*"}},
        Case{"LowerHalf", 4, 4, Recompute::none, {"model.embed_tokens.*", "model.layers.[0-2].*"}},
        Case{"UpperHalfOdd", 4, 3, Recompute::none, {"model.layers.[3-5].*", "model.norm.*", "lm_head.*"}},
        Case{"AllButNorms", 4, 4, Recompute::none, {"*_proj.*", "*embed*", "lm_head.*"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardwise::plan::split_batch_peak_test

// The bytes that autograd saves from forward to backward equal plan/memory on every rank, with any parameters
// frozen.
#include <gtest/gtest.h>

#include <cstdio>
#include <mutex>

#include "shardwise/base/memory_counter.h"
#include "shardwise/plan/memory.h"
#include "tests/plan/planned_run.h"
#include "tests/support/ranks.h"

namespace shardwise::plan::saved_bytes_test {
namespace {

/// Returns the bytes of this rank's live tensors in private memory and in the symmetric heap. The counter
/// includes all threads, so ranks run one at a time.
int64_t live_bytes(const comm::Group& group) {
  return base::live_bytes() + (group.symmetric_heap() ? group.symmetric_heap()->live_bytes() : 0);
}

/// Calls `work` on one rank after another while the others wait. All do so between the same collectives, as
/// they must drop what they share.
template <class Work>
void in_turns(const comm::Group& group, const Work& work) {
  static std::mutex turn;
  group.barrier();
  {
    const std::lock_guard lock(turn);
    work();
  }
  group.barrier();
}

/// Returns the bytes freed with the graph of one forward.
int64_t saved_bytes(const PlannedRun& run, const comm::Group& group) {
  const RunningModel model(run, group);
  model.forward();  // fills the rotary tables
  at::Tensor loss = model.forward();
  const int64_t loss_bytes = static_cast<int64_t>(loss.nbytes());
  int64_t freed = 0;
  in_turns(group, [&] {
    const int64_t before = live_bytes(group);
    loss.reset();
    freed = before - live_bytes(group);
  });
  return freed - loss_bytes;
}

int64_t planned_bytes(const PlannedRun& run, int rank) {
  int64_t bytes = total(saved_by_head(run.workload, rank));
  for (int64_t layer = 0; layer < run.workload.config.num_hidden_layers; ++layer)
    bytes += total(saved_by_block(run.workload, rank, layer));
  return bytes;
}

/// Returns the run with its micro-batch whole, and in two halves if it can be split.
std::vector<PlannedRun> whole_and_split(const PlannedRun& run) {
  PlannedRun split = run;
  split.workload.split_batch = true;
  const bool can_split = run.workload.parallelism == Parallelism::tp && run.workload.batch_size >= 2 &&
                         run.options.dropout == 0 && run.options.attention_dropout == 0 &&
                         run.workload.recompute != Recompute::full;
  return can_split ? std::vector{run, split} : std::vector{run};
}

class SavedBytes : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() { base::install_memory_counter(); }
  static void TearDownTestSuite() {
    std::printf("covered: %zu combinations whose saved bytes match the plan\n", compared_);
  }

 protected:
  static inline size_t compared_ = 0;
};

/// Models of one and of two layers, so that an error in a block cannot cancel one in the head.
TEST_P(SavedBytes, MatchThePlanOnEveryRank) {
  const std::vector<PlannedRun> all = runs(GetParam());
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& any : all) {
      for (const int64_t layers : {1, 2}) {
        for (const PlannedRun& run : whole_and_split(any.of_layers(layers))) {
          EXPECT_EQ(saved_bytes(run, group), planned_bytes(run, group.rank()))
              << run.name() << (run.workload.split_batch ? ", split, " : ", ") << layers << " layers, rank "
              << group.rank();
        }
      }
    }
  });
  compared_ += all.size();
}

/// A step frees all that it allocates.
TEST_P(SavedBytes, StepLeaksNoMemory) {
  const std::vector<PlannedRun> all = runs(GetParam());
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& run : all) {
      const RunningModel model(run, group);
      const auto step = [&] { model.forward().backward(); };
      step();
      int64_t before = 0, after = 0;
      in_turns(group, [&] { before = live_bytes(group); });
      step();
      in_turns(group, [&] { after = live_bytes(group); });
      EXPECT_EQ(after, before) << run.name() << ", rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SavedBytes, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace shardwise::plan::saved_bytes_test

// The calls and bytes that groups really count equal plan/communication's, for every pass and rank, whatever
// is frozen.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "shardwise/plan/communication.h"
#include "shardwise/plan/wanted.h"
#include "tests/plan/print.h"
#include "tests/support/planned_run.h"
#include "tests/support/ranks.h"

namespace shardwise::plan::counts_test {

namespace {

using comm::Op;

/// What `work` makes the group count; anything but the three collectives is a failure.
template <class Work>
Collectives counted(const comm::Group& group, const Work& work) {
  const comm::Counters before = group.counters();
  work();
  const comm::Counters counters = group.counters() - before;
  const auto traffic = [&](Op op) { return Traffic{counters[op].calls, counters[op].bytes}; };
  const Collectives collectives{traffic(Op::all_reduce), traffic(Op::all_gather),
                                traffic(Op::reduce_scatter)};
  EXPECT_EQ(collectives.total(), (Traffic{counters.total().calls, counters.total().bytes}));
  return collectives;
}

class Counts : public ::testing::TestWithParam<int> {
 public:
  static void TearDownTestSuite() {
    std::printf("covered: %zu combinations whose calls and bytes are the plan's\n", compared_);
  }

 protected:
  static inline size_t compared_ = 0;
};

TEST_P(Counts, OfForwardAndBackwardEqualTheTable) {
  const std::vector<PlannedRun> all = runs(GetParam());
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& any : all) {
      for (const int64_t layers : {1, 2}) {
        const PlannedRun run = any.of_layers(layers);
        const RunningModel model(run, group);
        const Passes planned = micro_batch_communication(run.workload, group.rank());
        at::Tensor loss;
        EXPECT_EQ(counted(model.group(), [&] { loss = model.forward(); }), planned.forward) << run.name();
        EXPECT_EQ(counted(model.group(), [&] { loss.backward(); }), planned.backward) << run.name();
      }
    }
  });
  compared_ += all.size();
}

/// Three sequences: of two and of one.
TEST_P(Counts, OfABatchInHalvesEqualTheTable) {
  std::vector<PlannedRun> split_batch;
  for (PlannedRun& run : runs(GetParam())) {
    const bool can_be = run.workload.stream == Stream::tp && run.workload.recompute != Recompute::full &&
                        run.asked.dropout == 0 && run.asked.attention_dropout == 0 &&
                        !run.asked.is_padded;  // for two sequences
    if (!can_be) continue;
    run.workload.split_batch = true;
    run.workload.batch_size = 3;
    split_batch.push_back(std::move(run));
  }
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& run : split_batch) {
      const RunningModel model(run, group);
      const Passes planned = micro_batch_communication(run.workload, group.rank());
      at::Tensor loss;
      EXPECT_EQ(counted(model.group(), [&] { loss = model.forward(); }), planned.forward) << run.name();
      EXPECT_EQ(counted(model.group(), [&] { loss.backward(); }), planned.backward) << run.name();
    }
  });
  EXPECT_FALSE(split_batch.empty());
  compared_ += split_batch.size();
}

TEST_P(Counts, OfAnOptimizerStepEqualTheTable) {
  const std::vector<PlannedRun> all = runs(GetParam());
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& run : all) {
      const RunningModel model(run, group);
      model.forward().backward();
      const auto specs = testing::specs_of(model.weights(), run.stream());
      const Collectives counts = counted(group, [&] {
        parallel::sync_gradients_(specs, group);
        parallel::gradient_norm(specs, parallel::Norm::two, group);
      });
      EXPECT_EQ(counts, optimizer_communication(run.workload, group.rank())) << run.name();
    }
  });
}

/// Rows of the stream that a rank's backward copies. It stages its own shard of the gradients that reach the
/// row-parallel layers, but those which nothing is made of, and gathers the embedding's: its own shard in,
/// all of it out.
int64_t copied_rows(const Workload& workload, const Share& share) {
  const auto reads = [](const Wanted& row) { return row.input || row.weight; };
  int64_t staged = 0;
  for (int64_t layer = 0; layer < workload.config.num_hidden_layers; ++layer) {
    const WantedByBlock wanted = wanted_by_block(workload, layer);
    staged += reads(wanted.out) + reads(wanted.down);
  }
  const bool trains_embedding = !workload.frozen.contains("model.embed_tokens.weight");
  return staged * share.stream_rows + trains_embedding * (share.stream_rows + share.rows);
}

/// On shared memory TP+SP copies nothing in forward.
TEST_P(Counts, OfCopiedBytesAreTheGradientsAlone) {
  const std::vector<PlannedRun> all = runs(GetParam());
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& run : all) {
      if (run.workload.stream == Stream::tp ||
          run.workload.save_for_backward != SaveForBackward::shard_in_place)
        continue;
      const RunningModel model(run, group);
      const comm::Counters start = model.group().counters();
      const auto copied = [&](Op op) { return (model.group().counters() - start)[op].copied_bytes; };
      const at::Tensor loss = model.forward();
      EXPECT_EQ(copied(Op::all_gather), 0) << run.name();
      loss.backward();
      const Share share = share_of(run.workload, group.rank());
      const int64_t row = run.workload.config.hidden_size * run.workload.element_bytes;
      const int64_t expected = GetParam() == 1 ? 0 : copied_rows(run.workload, share) * row;
      EXPECT_EQ(copied(Op::all_gather), expected) << run.name();
      EXPECT_EQ(copied(Op::reduce_scatter), 0) << run.name();
    }
  });
}

/// What the comparisons above run: a new family must be among it.
TEST(PlannedRuns, HoldEveryFamilyAndEmptyShards) {
  std::set<std::string> families;
  bool has_empty_ffn = false, has_empty_vocab = false;
  for (const PlannedRun& run : runs(/*ranks=*/3)) {
    const Share last = share_of(run.workload, /*rank=*/2);
    families.insert(run.workload.config.model_type);
    has_empty_ffn |= last.ffn == 0;
    has_empty_vocab |= last.vocab == 0;
    EXPECT_NO_THROW(model::validate(run.workload.config)) << run.name();
  }
  for (const std::string& preset : model::preset_names())
    EXPECT_TRUE(families.contains(model::preset(preset).model_type)) << preset;
  EXPECT_TRUE(has_empty_ffn && has_empty_vocab);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Counts, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace shardwise::plan::counts_test

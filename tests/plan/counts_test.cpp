// The calls and bytes that groups count match plan/communication for every pass and rank, with any parameters
// frozen.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "shardwise/plan/communication.h"
#include "shardwise/plan/required_gradients.h"
#include "tests/plan/planned_run.h"
#include "tests/plan/print.h"
#include "tests/support/ranks.h"

namespace shardwise::plan::counts_test {

namespace {

using comm::Op;

/// Returns what the group counts during `work`; fails for any but the three collectives.
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
    std::printf("covered: %zu combinations whose calls and bytes match the plan\n", compared_);
  }

 protected:
  static inline size_t compared_ = 0;
};

TEST_P(Counts, StepMatchesThePlan) {
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
        const auto specs = testing::specs_of(model.weights(), run.stream());
        const Collectives of_optimizer = counted(group, [&] {
          parallel::sync_gradients_(specs, group);
          parallel::gradient_norm(specs, parallel::NormOrder::two, group);
        });
        EXPECT_EQ(of_optimizer, optimizer_communication(run.workload, group.rank())) << run.name();
      }
    }
  });
  compared_ += all.size();
}

/// Three sequences: a half of two and a half of one.
TEST_P(Counts, SplitBatchMatchesThePlan) {
  std::vector<PlannedRun> split_runs;
  for (PlannedRun& run : runs(GetParam())) {
    const bool can_be = run.workload.parallelism == Parallelism::tp &&
                        run.workload.recompute != Recompute::full && run.options.dropout == 0 &&
                        run.options.attention_dropout == 0 && !run.options.is_padded;  // for two sequences
    if (!can_be) continue;
    run.workload.split_batch = true;
    run.workload.batch_size = 3;
    split_runs.push_back(std::move(run));
  }
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& run : split_runs) {
      const RunningModel model(run, group);
      const Passes planned = micro_batch_communication(run.workload, group.rank());
      at::Tensor loss;
      EXPECT_EQ(counted(model.group(), [&] { loss = model.forward(); }), planned.forward) << run.name();
      EXPECT_EQ(counted(model.group(), [&] { loss.backward(); }), planned.backward) << run.name();
    }
  });
  EXPECT_FALSE(split_runs.empty());
  compared_ += split_runs.size();
}

/// Returns the rows of [s, b, h] that a rank's backward copies. It stages its shard of the output gradient of
/// each row-parallel layer that needs it. It all-gathers the embedding's output gradient: its shard in, all
/// rows out.
int64_t copied_rows(const Workload& workload, const RankShard& shard) {
  const auto reads = [](const RequiredGradients& row) { return row.input || row.weight; };
  int64_t staged = 0;
  for (int64_t layer = 0; layer < workload.config.num_hidden_layers; ++layer) {
    const RequiredByBlock required = workload.required_by_block(layer);
    staged += reads(required.out) + reads(required.down);
  }
  const bool trains_embedding = !workload.frozen.contains("model.embed_tokens.weight");
  return staged * shard.residual_rows + trains_embedding * (shard.residual_rows + shard.rows);
}

/// Returns the bytes that the loss copies: its values of every token, this rank's in and all ranks' out.
int64_t copied_loss_terms(const Workload& workload, const RankShard& shard) {
  const int64_t terms = workload.has_label_smoothing ? 4 : 3;
  return (1 + workload.tp) * shard.rows * terms * workload.accumulator_bytes();
}

/// In shared memory TP+SP copies nothing of [s, b, h] in forward.
TEST_P(Counts, CopiedBytesAreThoseOfGradients) {
  const std::vector<PlannedRun> all = runs(GetParam());
  testing::on_ranks(GetParam(), [&](const comm::Group& group) {
    for (const PlannedRun& run : all) {
      if (run.workload.parallelism == Parallelism::tp ||
          run.workload.column_input_storage != ColumnInputStorage::shard_in_place)
        continue;
      const RunningModel model(run, group);
      const comm::Counters start = model.group().counters();
      const auto copied = [&](Op op) { return (model.group().counters() - start)[op].copied_bytes; };
      const at::Tensor loss = model.forward();
      const RankShard shard = rank_shard(run.workload, group.rank());
      const int64_t row = run.workload.config.hidden_size * run.workload.element_bytes,
                    terms = GetParam() == 1 ? 0 : copied_loss_terms(run.workload, shard);
      EXPECT_EQ(copied(Op::all_gather), terms) << run.name();
      loss.backward();
      const int64_t rows = GetParam() == 1 ? 0 : copied_rows(run.workload, shard);
      EXPECT_EQ(copied(Op::all_gather), terms + rows * row) << run.name();
      EXPECT_EQ(copied(Op::reduce_scatter), 0) << run.name();
    }
  });
}

/// The runs above must include every family.
TEST(PlannedRuns, CoverEveryFamilyAndEmptyShards) {
  std::set<std::string> families;
  bool has_empty_ffn = false, has_empty_vocab = false;
  for (const PlannedRun& run : runs(/*ranks=*/3)) {
    const RankShard last = rank_shard(run.workload, /*rank=*/2);
    families.insert(run.workload.config.model_type);
    has_empty_ffn |= last.ffn == 0;
    has_empty_vocab |= last.vocab == 0;
    EXPECT_NO_THROW(config::validate(run.workload.config)) << run.name();
  }
  for (const std::string& preset : config::preset_names())
    EXPECT_TRUE(families.contains(config::preset(preset).model_type)) << preset;
  EXPECT_TRUE(has_empty_ffn && has_empty_vocab);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Counts, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace shardwise::plan::counts_test

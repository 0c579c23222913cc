// Pipeline stages: what they hold and send together is what the whole model holds and sends.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardwise/plan/communication.h"
#include "shardwise/plan/memory.h"
#include "shardwise/plan/peak.h"
#include "tests/plan/print.h"

namespace shardwise::plan::stages_test {
namespace {

struct Model {
  const char* preset;
  int64_t blocks;  // few, so that every cut is tried
};
constexpr Model kModels[] = {
    {"llama-3-8b", 5}, {"llama-3.2-1b", 4}, {"gpt2", 3}, {"qwen3-0.6b", 4}, {"mistral-7b", 3}};

Workload workload_of(const Model& model, int tp, Parallelism parallelism) {
  Workload workload;
  workload.config = config::preset(model.preset);
  workload.config.num_hidden_layers = model.blocks;
  workload.tp = tp;
  workload.parallelism = parallelism;
  workload.sequence_length = 64;
  workload.batch_size = 2;
  workload.element_bytes = 2;
  return workload;
}

Workload stage_of(Workload workload, int64_t begin, int64_t end) {
  workload.stage = base::Range{begin, end};
  return workload;
}

/// Calls f with every workload and every cut of it into two stages.
template <class F>
void for_each_cut(const F& f) {
  for (const Model& model : kModels)
    for (const int tp : {1, 2, 3, 4})
      for (const Parallelism parallelism : {Parallelism::tp, Parallelism::tp_sp})
        for (int64_t cut = 1; cut < model.blocks; ++cut) {
          SCOPED_TRACE(std::string(model.preset) + " tp " + std::to_string(tp) + " cut " +
                       std::to_string(cut));
          const Workload whole = workload_of(model, tp, parallelism);
          f(whole, stage_of(whole, 0, cut), stage_of(whole, cut, model.blocks));
        }
}

TEST(PlanStages, TogetherHoldTheModelAndATiedHeadTwice) {
  for_each_cut([](const Workload& whole, const Workload& first, const Workload& last) {
    for (int rank = 0; rank < whole.tp; ++rank) {
      const int64_t vocab = rank_shard(whole, rank).vocab * whole.config.hidden_size;
      EXPECT_EQ(local_parameter_count(first, rank) + local_parameter_count(last, rank),
                local_parameter_count(whole, rank) + (whole.config.tie_word_embeddings ? vocab : 0));
    }
  });
}

TEST(PlanStages, TogetherSendWhatTheModelSends) {
  for_each_cut([](const Workload& whole, const Workload& first, const Workload& last) {
    for (int rank = 0; rank < whole.tp; ++rank) {
      const Passes of_first = micro_batch_communication(first, rank),
                   of_last = micro_batch_communication(last, rank),
                   of_whole = micro_batch_communication(whole, rank);
      EXPECT_EQ(of_first.forward + of_last.forward, of_whole.forward);
      EXPECT_EQ(of_first.backward + of_last.backward, of_whole.backward);
    }
  });
}

TEST(PlanStages, PeaksAreOfTheTensorsThatTheyHave) {
  for_each_cut([](const Workload& whole, const Workload& first, const Workload& last) {
    for (const MemorySnapshot& snapshot : peak_candidates(first, 0)) EXPECT_NE(snapshot.name, "loss");
    int64_t saved = 0;
    for (int64_t layer = 0; layer < first.blocks().end; ++layer)
      saved += total(saved_by_block(whole, 0, layer));
    // The last stage has the whole model's passes without what the first stage saves.
    const MemorySnapshots of_whole = peak_candidates(whole, 0);
    for (const MemorySnapshot& snapshot : peak_candidates(last, 0)) {
      EXPECT_NE(snapshot.name, "embedding");
      if (snapshot.name == "optimizer") continue;
      const auto same = std::ranges::find(of_whole, snapshot.name, &MemorySnapshot::name);
      ASSERT_NE(same, of_whole.end()) << snapshot.name;
      EXPECT_EQ(total(snapshot.allocations), total(same->allocations) - saved) << snapshot.name;
    }
  });
}

TEST(PlanStages, RefusesBlocksThatAreNotThere) {
  const Workload whole = workload_of(kModels[0], 1, Parallelism::tp);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{-1, 2}, {2, 2}, {3, 2}, {0, 6}})
    EXPECT_THROW(stage_of(whole, begin, end).validate(), c10::ValueError) << begin << ", " << end;
  EXPECT_NO_THROW(stage_of(whole, 4, 5).validate());
}

}  // namespace
}  // namespace shardwise::plan::stages_test

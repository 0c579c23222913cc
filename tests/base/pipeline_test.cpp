// Every schedule of a pipeline, run by a simulator: it ends, and has the idle time and the saved
// micro-batches of the papers.
#include "shardwise/base/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

namespace shardwise::base {
namespace {

using Kind = PipelineAction::Kind;

constexpr int64_t kForward = 1, kBackward = 2;  // the times of a chunk's passes

/// What the simulated step of a pipeline took.
struct Simulated {
  bool ended = true;
  int64_t time = 0;                // until the last stage ended
  std::vector<int64_t> in_flight;  // of each stage, the most forwards without their backward
};

/// Runs the actions of every stage in their order; each begins when its input has been computed.
class Simulator {
 public:
  explicit Simulator(const Pipeline& pipeline) : pipeline_(pipeline) {
    for (int stage = 0; stage < pipeline.stages; ++stage) actions_.push_back(pipeline.actions(stage));
    next_.resize(actions_.size());
    free_at_.resize(actions_.size());
  }

  Simulated run() {
    Simulated result;
    while (advance_()) {
    }
    for (size_t stage = 0; stage < actions_.size(); ++stage) {
      result.ended = result.ended && next_[stage] == actions_[stage].size();
      result.time = std::max(result.time, free_at_[stage]);
      result.in_flight.push_back(pipeline_.most_in_flight(static_cast<int>(stage)));
    }
    return result;
  }

 private:
  using Pass = std::tuple<Kind, int64_t, int64_t>;  // of a part of the model and a micro-batch

  /// Returns when the input of a pass is there; −1 if it is not computed yet.
  int64_t input_at_(Kind kind, int64_t part, int64_t micro_batch) const {
    const int64_t last = pipeline_.stages * pipeline_.chunks - 1;
    if (kind == Kind::forward && part == 0) return 0;
    const Pass input = kind == Kind::forward ? Pass{kind, part - 1, micro_batch}
                       : part < last         ? Pass{kind, part + 1, micro_batch}
                                             : Pass{Kind::forward, part, micro_batch};
    const auto found = ended_at_.find(input);
    return found == ended_at_.end() ? -1 : found->second;
  }

  /// Runs the next action of every stage that has its input. Returns whether there was one.
  bool advance_() {
    bool advanced = false;
    for (size_t stage = 0; stage < actions_.size(); ++stage) {
      while (next_[stage] < actions_[stage].size()) {
        const auto& [kind, chunk, micro_batch] = actions_[stage][next_[stage]];
        const int64_t part = chunk * pipeline_.stages + static_cast<int64_t>(stage);
        const int64_t input = input_at_(kind, part, micro_batch);
        const bool has_saved =
            kind == Kind::forward || ended_at_.contains({Kind::forward, part, micro_batch});
        if (input < 0 || !has_saved) break;
        free_at_[stage] = std::max(free_at_[stage], input) + (kind == Kind::forward ? kForward : kBackward);
        EXPECT_TRUE(ended_at_.emplace(Pass{kind, part, micro_batch}, free_at_[stage]).second);
        ++next_[stage];
        advanced = true;
      }
    }
    return advanced;
  }

  Pipeline pipeline_;
  std::vector<std::vector<PipelineAction>> actions_;
  std::vector<size_t> next_;
  std::vector<int64_t> free_at_;
  std::map<Pass, int64_t> ended_at_;
};

TEST(Pipeline, EveryScheduleEndsAndHasEveryPassOnce) {
  int checked = 0;
  for (const PipelineSchedule schedule :
       {PipelineSchedule::afab, PipelineSchedule::one_forward_one_backward}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int64_t chunks = 1; chunks <= 4; ++chunks) {
        for (int64_t micro_batches = 0; micro_batches <= 32; ++micro_batches) {
          const Pipeline pipeline{stages, chunks, micro_batches, schedule};
          const Simulated simulated = Simulator(pipeline).run();
          EXPECT_TRUE(simulated.ended) << stages << " stages, " << chunks << " chunks, " << micro_batches
                                       << " micro-batches: a stage waits for ever";
          EXPECT_EQ(std::ssize(pipeline.actions(0)), 2 * chunks * micro_batches);
          ++checked;
        }
      }
    }
  }
  std::printf("covered: %d pipelines of up to 8 stages, 4 chunks and 32 micro-batches\n", checked);
}

// Equations of Narayanan et al. 2021, section 2.2: m micro-batches of a forward f and a backward b take m(f +
// b), and filling and draining the pipeline (p − 1)(f + b) / v, of v chunks.
TEST(Pipeline, StagesIdleAsLongAsThePaperSays) {
  for (int64_t stages = 1; stages <= 8; ++stages) {
    for (int64_t m = 1; m <= 32; ++m) {
      for (const PipelineSchedule schedule :
           {PipelineSchedule::afab, PipelineSchedule::one_forward_one_backward})
        EXPECT_EQ(Simulator({static_cast<int>(stages), 1, m, schedule}).run().time,
                  (m + stages - 1) * (kForward + kBackward));
      if (m % stages != 0) continue;
      for (int64_t chunks = 2; chunks <= 4; ++chunks)  // the times above are those of a chunk
        EXPECT_EQ(Simulator({static_cast<int>(stages), chunks, m}).run().time,
                  (m * chunks + stages - 1) * (kForward + kBackward))
            << stages << " stages, " << chunks << " chunks, " << m << " micro-batches";
    }
  }
}

TEST(Pipeline, StagesSaveAsManyMicroBatchesAsThePaperSays) {
  for (int64_t stages = 1; stages <= 8; ++stages) {
    for (int64_t m = 1; m <= 32; ++m) {
      const int p = static_cast<int>(stages);
      const auto afab = Simulator({p, 1, m, PipelineSchedule::afab}).run().in_flight;
      const auto one_by_one = Simulator({p, 1, m}).run().in_flight;
      for (int64_t stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(afab[stage], m);
        EXPECT_EQ(one_by_one[stage], std::min(m, stages - stage));
      }
      if (m % stages != 0) continue;
      for (int64_t chunks = 2; chunks <= 4; ++chunks) {
        const auto interleaved = Simulator({p, chunks, m}).run().in_flight;
        for (int64_t stage = 0; stage < stages; ++stage)
          EXPECT_EQ(interleaved[stage],
                    std::min(2 * (stages - stage - 1) + (chunks - 1) * stages + 1, m * chunks));
      }
    }
  }
}

TEST(Pipeline, OneForwardOneBackwardOfThreeStages) {
  constexpr Kind kF = Kind::forward, kB = Kind::backward;
  const Pipeline pipeline{.stages = 3, .chunks = 1, .micro_batches = 4};
  using Actions = std::vector<PipelineAction>;
  EXPECT_EQ(
      pipeline.actions(0),
      (Actions{
          {kF, 0, 0}, {kF, 0, 1}, {kF, 0, 2}, {kB, 0, 0}, {kF, 0, 3}, {kB, 0, 1}, {kB, 0, 2}, {kB, 0, 3}}));
  EXPECT_EQ(
      pipeline.actions(2),
      (Actions{
          {kF, 0, 0}, {kB, 0, 0}, {kF, 0, 1}, {kB, 0, 1}, {kF, 0, 2}, {kB, 0, 2}, {kF, 0, 3}, {kB, 0, 3}}));
  const Pipeline interleaved{.stages = 2, .chunks = 2, .micro_batches = 2};
  EXPECT_EQ(
      interleaved.actions(1),
      (Actions{
          {kF, 0, 0}, {kF, 0, 1}, {kF, 1, 0}, {kB, 1, 0}, {kF, 1, 1}, {kB, 1, 1}, {kB, 0, 0}, {kB, 0, 1}}));
}

}  // namespace
}  // namespace shardwise::base

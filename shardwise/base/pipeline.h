// The order in which the stages of a pipeline run the forwards and backwards of a step: arithmetic only.
#pragma once
#include <cstdint>
#include <vector>

namespace shardwise::base {

/// Which micro-batches' backwards come between the forwards.
enum class PipelineSchedule {
  afab,  // none: all forwards, then all backwards (GPipe, Huang et al. 2019, arXiv 1811.06965)
  // After a warm-up one forward and one backward in turn (PipeDream-Flush); with several chunks interleaved
  // (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
  one_forward_one_backward,
};

/// A forward or a backward of one micro-batch through one chunk of a stage.
struct PipelineAction {
  /// The direction.
  enum class Kind { forward, backward };
  Kind kind;            // one of these
  int64_t chunk;        // of the stage
  int64_t micro_batch;  // of the step
  bool operator==(const PipelineAction&) const = default;
};

/// The steps of a pipeline of `stages` ranks, each of which has `chunks` parts of the model: chunk c of stage
/// s is the model's part c·stages + s.
struct Pipeline {
  int stages;                                                              // at least 1
  int64_t chunks;                                                          // at least 1
  int64_t micro_batches;                                                   // of a step, at least 0
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;  // the order of the passes

  /// Returns what a stage does in a step, in this order on all of its ranks. Every forward and every backward
  /// of its chunks occurs once; if each waits only for its input, and no rank waits to send, none waits for
  /// ever.
  std::vector<PipelineAction> actions(int stage) const;
  /// Returns the most forwards of a stage's chunks whose backward has not ended.
  int64_t most_in_flight(int stage) const;
};

}  // namespace shardwise::base

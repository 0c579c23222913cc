// The time of a training run's steps: planned before it starts, for the machine that `shardwise bench machine
// --save` measured, and measured.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/plan/training_plan.h"
#include "shardwise/train/job.h"
#include "shardwise/train/loop.h"

namespace shardwise::cli {

/// Returns the task that a run's step is for plan/: one replica, whose micro-batches are those of
/// --grad-accum.
plan::TrainingTask training_task(const config::Config& config, const train::TrainOptions& options);
/// Returns how the options split that step.
plan::Degrees degrees_of(const train::TrainOptions& options);

/// A run's first steps, in which buffers and pages are new: its times are those of the others.
inline constexpr auto kFirstSteps = static_cast<size_t>(train::kFirstProfiledStep - 1);

/// The steps of a run.
struct StepTimes {
  int64_t ranks = 1;
  bool is_planned_for = true;                  // plan/ has the time of such runs
  std::string machine = {};                    // where its figures are from
  std::optional<plan::StepTime> planned = {};  // of a step; no value without a measured machine
  int64_t steps = 0;                           // of the run
  std::vector<double> seconds = {};            // of each step so far, on the slowest rank

  /// Returns the planned seconds of all steps, without evaluations and saves. There must be a plan.
  double planned_run_seconds() const { return static_cast<double>(steps) * planned->total(); }
  /// Returns the median of the measured steps without kFirstSteps; no value if there are no others.
  std::optional<double> median() const;
};

/// Returns the planned times of a run on the ranks of `group`, without measured ones. Split batches,
/// several replicas, fp64 and ranks over MPI are not planned.
StepTimes planned_steps(const train::Job& job, const comm::Group& group);

/// Returns "; planned time: 12.3 ms a step, 2.46 s for 200 steps", or "" without a plan.
std::string planned_text(const StepTimes& times);
/// Returns a line that compares measured with planned times. Without a plan it is "", or after a long run how
/// to get one.
std::string compared_text(const StepTimes& times);
/// Returns the fields planned_step_seconds, planned_run_seconds, planned_compute_seconds,
/// planned_communication_seconds, planned_machine and measured_step_seconds, each null if there is none.
nlohmann::ordered_json to_json(const StepTimes& times);

}  // namespace shardwise::cli

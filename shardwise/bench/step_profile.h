// Times a training step on several numbers of ranks, and splits its time into parts by what was recorded.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "shardwise/base/profile.h"
#include "shardwise/bench/rank_team.h"
#include "shardwise/bench/timing.h"
#include "shardwise/bench/training_step.h"

namespace shardwise::bench {

/// Milliseconds of a step by what they were spent on.
struct StepParts {
  double compute = 0;        // kernels of forward and backward
  double communication = 0;  // collectives, without waiting
  double waiting = 0;        // for other ranks
  double optimizer = 0;      // norm of the gradients, and AdamW
  double other = 0;          // outside all recorded ops, such as in autograd

  double total() const { return compute + communication + waiting + optimizer + other; }
};

/// Returns whether a recorded op is a collective.
bool is_collective(std::string_view op);

/// Returns the mean over the recorded steps: the outermost ops.
StepParts parts_of(const base::Profile& profile);

/// A training step on one number of ranks.
struct StepProfile {
  int64_t ranks;
  bool is_oversubscribed;
  int64_t weight_bytes;  // on rank 0
  Measured step;         // on the slowest rank
  StepParts parts;       // mean over the ranks of steps that are recorded after those that are timed
};

/// What is trained, and for how long each number of ranks is timed.
struct StepBench {
  config::Config config;
  at::ScalarType dtype;
  StepShape shape;
  double seconds;
};

/// Called with how many repetitions are done.
using OnStepProgress = std::function<void(int64_t done, int64_t repetitions)>;

/// Measures all teams in the same repetitions; each has its own model and optimizer in memory. `world`: all
/// ranks of the job. The results are complete on rank 0, which calls `on_progress`. Collective.
std::vector<StepProfile> profile_steps(const StepBench& bench, const std::vector<RankTeam>& teams,
                                       const comm::Group& world, const OnStepProgress& on_progress);

}  // namespace shardwise::bench

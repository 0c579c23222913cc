// A training run from its first step to its last: when to evaluate, save and stop.
#pragma once
#include <functional>
#include <optional>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/train/inventory.h"
#include "shardwise/train/job.h"
#include "shardwise/train/record.h"

namespace shardwise::train {

/// Called after every step, and on every rank: who prints is the caller's choice.
using OnStep = std::function<void(const StepRecord&)>;

/// What a run has come to.
struct Summary {
  StepRecord last;                             // the last step, evaluated if there is validation text
  int64_t steps = 0;                           // done in this run
  double seconds = 0;                          // in steps, evaluations and saves
  std::optional<std::filesystem::path> saved;  // the last checkpoint
  Inventory inventory;                         // at the end
  std::optional<checkpoint::LoadCost> load;    // of the checkpoint that it began from
};

/// Collective. Errors: those of Trainer; what was saved before stands.
Summary run(const Job& job, const comm::Group& group, const OnStep& on_step);

}  // namespace shardwise::train

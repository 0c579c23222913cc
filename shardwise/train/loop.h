// The training loop: runs the steps of a job and decides when to evaluate, save and stop.
#pragma once
#include <functional>
#include <optional>

#include "shardwise/base/profile.h"
#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/train/job.h"
#include "shardwise/train/mesh.h"
#include "shardwise/train/record.h"
#include "shardwise/train/shard_report.h"

namespace shardwise::train {

/// Called on every rank once the run is accepted and everything that it starts from has been read, before
/// its first step.
using OnStart = std::function<void()>;

/// Called after every step on every rank of the job.
using OnStep = std::function<void(const StepRecord&)>;

/// The steps of a run that --profile records: after two that are slower because buffers and pages are new.
inline constexpr int64_t kFirstProfiledStep = 3, kLastProfiledStep = 5;

/// The results of a run.
struct Summary {
  StepRecord last;                             // the last step, with val_loss if there is validation text
  int64_t steps = 0;                           // optimizer steps of this run
  double seconds = 0;                          // spent in steps, evaluations and saves
  std::optional<std::filesystem::path> saved;  // the last checkpoint
  ShardReport shard_report;                    // after the last step
  std::optional<checkpoint::LoadCost> load;    // cost of reading the starting checkpoint
  base::Profile profile;                       // of this rank, with --profile
};

/// Runs the job (collective) on the ranks of `mesh`, that of connect_mesh or one_replica. A save is synced to
/// the disk while the next steps run, and published after the first of them by whose end all ranks have
/// synced it. Errors: as Trainer's; checkpoints that were published before remain valid, and NotFiniteError
/// publishes the pending one.
Summary run(const Job& job, const comm::Mesh& mesh, const OnStep& on_step, const OnStart& on_start = {});

}  // namespace shardwise::train

#include "shardwise/train/loop.h"

#include <fmt/format.h>

#include <optional>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/base/log.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/directories.h"
#include "shardwise/checkpoint/run_lock.h"
#include "shardwise/train/finite.h"
#include "shardwise/train/trainer.h"

namespace shardwise::train {
namespace {

constexpr int64_t kKeep = 3;

/// True after every `every`-th step and after the last.
bool is_due(int64_t step, int64_t every, int64_t last) {
  return step == last || (every > 0 && step % every == 0);
}

void log_load(const Job& job, const checkpoint::LoadCost& cost, const comm::Group& group) {
  checkpoint::log_load("train", *job.starting_checkpoint(), cost, group);
}

/// Rejects --split-batch if collectives progress only inside calls: the schedule would hide no communication
/// and only make the products smaller.
void check_split_batch_backend(const TrainOptions& options, const comm::Group& group) {
  if (!options.split_batch || !group.is_synchronous()) return;
  throw base::CollectiveError(fmt::format(
      "train: --split-batch needs a backend that progresses asynchronously, such as NCCL; got {} ranks in "
      "shared memory or over MPI; leave it out [SW0029]",
      group.size()));
}

/// Collective. Throws on every rank if the tensor-parallel ranks of any replica cannot do what is asked:
/// those of one may share memory, and those of another not.
void check_backends(const TrainOptions& options, const comm::Mesh& mesh) {
  checkpoint::ValidationErrors errors;
  errors.collect([&] {
    check_split_batch_backend(options, mesh.group(kTensorAxis));
    check_overlap(options.overlap, mesh.group(kTensorAxis));
  });
  errors.raise_on_any_rank(world_of(mesh));
}

/// Collective. Returns rank 0's lock of the directory of --save.
std::optional<checkpoint::RunLock> lock_save_directory(const Job& job, const comm::Group& group) {
  std::optional<checkpoint::RunLock> lock;
  checkpoint::ValidationErrors errors;
  errors.collect([&] {
    if (!job.options().save || group.rank() != 0) return;
    lock.emplace(*job.options().save, checkpoint::wait_on_rank_0(group, checkpoint::RunLock::kMaxWait));
    job.check_no_later_steps();
  });
  errors.raise_on_any_rank(group);
  return lock;
}

/// Logs the decision of --overlap auto on rank 0. Returns whether there is one.
bool log_overlap(const OverlapChoice& overlap, const comm::Group& group) {
  if (!overlap.decision()) return false;
  if (group.rank() == 0) base::log_info("train: " + *overlap.decision());
  return true;
}

/// Runs a step, recorded if it is one of those of --profile.
StepRecord step(Trainer& trainer, const Job& job, base::Profile& profile) {
  const int64_t number = trainer.steps_done() - job.first_step() + 1;
  std::optional<base::Profile::Recording> recording;
  if (job.options().profile && number >= kFirstProfiledStep && number <= kLastProfiledStep)
    recording.emplace(profile);
  return trainer.step();
}

/// The saves of a run, at most one of which is pending. All calls but the last are collective.
class Saves {
 public:
  void begin(Trainer& trainer, const TrainOptions& options) {
    finish();
    pending_.emplace(trainer.begin_save(*options.save, options.keep.value_or(kKeep)));
  }
  void finish_if_synced() {
    if (pending_ && pending_->is_synced()) finish();
  }
  void finish() {
    if (!pending_) return;
    pending_->finish();
    last_ = pending_->target();
    pending_.reset();
  }
  /// Returns the last checkpoint that was published.
  const std::optional<std::filesystem::path>& last() const { return last_; }

 private:
  std::optional<checkpoint::PendingSave> pending_;
  std::optional<std::filesystem::path> last_;
};

/// Runs a step. Its error leaves no save pending that every rank could publish.
StepRecord step(Trainer& trainer, const Job& job, base::Profile& profile, Saves& saves) try {
  StepRecord record = step(trainer, job, profile);
  saves.finish_if_synced();
  return record;
} catch (const NotFiniteError&) {
  saves.finish();
  throw;
}

}  // namespace

Summary run(const Job& job, const comm::Mesh& mesh, const OnStep& on_step, const OnStart& on_start) {
  const TrainOptions& options = job.options();
  const comm::Group& world = world_of(mesh);
  check_backends(options, mesh);
  const std::optional<checkpoint::RunLock> lock = lock_save_directory(job, world);
  Trainer trainer(job, mesh);
  if (trainer.load_cost()) log_load(job, *trainer.load_cost(), world);
  if (on_start) on_start();
  const base::Stopwatch watch;
  Summary summary;
  summary.load = trainer.load_cost();
  Saves saves;
  bool is_overlap_logged = log_overlap(trainer.overlap(), world);
  while (trainer.steps_done() < options.last_step()) {
    StepRecord record = step(trainer, job, summary.profile, saves);
    if (!is_overlap_logged) is_overlap_logged = log_overlap(trainer.overlap(), world);
    if (job.windows().validation_count() > 0 &&
        is_due(record.step, options.eval_every, options.last_step())) {
      record.val_loss = trainer.evaluate();
    }
    on_step(record);
    if (options.save && is_due(record.step, options.save_every, options.last_step())) {
      saves.begin(trainer, options);
    }
    summary.last = std::move(record);
  }
  saves.finish();
  summary.saved = saves.last();
  summary.steps = trainer.steps_done() - job.first_step();
  summary.seconds = watch.seconds();
  summary.shard_report = make_shard_report(trainer, mesh);
  return summary;
}

}  // namespace shardwise::train

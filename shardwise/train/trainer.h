// One rank's trainer: model, optimizer and the training step. loop.h decides when to evaluate, save and stop.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/checkpoint/pending_save.h"
#include "shardwise/parallel/data_parallel.h"
#include "shardwise/parallel/verify.h"
#include "shardwise/train/bound_model.h"
#include "shardwise/train/finite.h"
#include "shardwise/train/job.h"
#include "shardwise/train/mesh.h"
#include "shardwise/train/optimizer.h"
#include "shardwise/train/overlap_choice.h"
#include "shardwise/train/record.h"
#include "shardwise/train/schedule.h"
#include "shardwise/train/stage_runner.h"

namespace shardwise::train {

/// One rank's model, optimizer and training state.
class Trainer {
 public:
  /// Initializes the weights from the seed, or loads them from the checkpoint (collective). `job` must
  /// outlive the trainer; `mesh` is that of connect_mesh or one_replica.
  Trainer(const Job& job, const comm::Mesh& mesh);
  Trainer(const Trainer&) = delete;  // its parts refer to each other

  /// Performs the next optimizer step (collective): this replica's micro-batches, sums of gradients over the
  /// replicas, norm, clipping, AdamW. Every loss is divided by the tokens of the whole step, so that sums are
  /// all there is to compute over ranks. With --zero 1 each replica sums and updates the rows that it owns.
  /// Calls `before_update` once main_grad of these rows has the step's gradients, before they are clipped;
  /// afterwards they are zero. Throws NotFiniteError if loss or gradient norm is NaN or Inf; the weights are
  /// then unchanged, and the gradients zero.
  StepRecord step(const std::function<void()>& before_update = {});

  /// Returns the mean loss over the first validation windows (collective), without dropout, label smoothing
  /// and z-loss. Replicas share the windows.
  double evaluate();

  /// Writes the checkpoint `directory`/step-N, which finish() of the result publishes. Collective: every rank
  /// writes the rows that it owns. Errors: as checkpoint::PendingSave's.
  checkpoint::PendingSave begin_save(const std::filesystem::path& directory, int64_t keep);

  /// The cost of reading the starting checkpoint; nullopt if the weights were initialized.
  const std::optional<checkpoint::LoadCost>& load_cost() const { return load_cost_; }
  const OverlapChoice& overlap() const { return overlap_; }
  int64_t steps_done() const { return steps_done_; }
  const model::DecoderWeights& weights() const { return *weights_; }
  const AdamW& optimizer() const { return optimizer_; }
  /// What the replicas split, and which part is this rank's.
  const parallel::DataParallel& data_parallel() const { return data_parallel_; }

 private:
  /// Returns micro-batch `index` of the step.
  MicroBatch make_micro_batch(int64_t index) const;
  /// Runs forward and backward of micro-batch `index` of the step; returns its part of the step's loss, on
  /// the device. Calls `part_done` as nn::Step does.
  at::Tensor micro_batch(int64_t index, const nn::OnPart* part_done);
  /// Runs the micro-batches of this replica. Returns the sum of their losses. With sharded gradients, sums
  /// over ranks and replicas those of each part as soon as backward has completed them.
  at::Tensor run_micro_batches_();
  /// Sums those of the parts down to `first` that are not summed yet.
  void sum_parts_down_to_(int64_t first);
  /// Takes part in the gathers and sums of `count` micro-batches that only other replicas have.
  void join_micro_batches_(int64_t count);
  /// Takes part in the gathers of a forward that only other replicas run.
  void join_forward_();
  /// Sums and clips the gradients, runs AdamW, zeroes the gradients, and with --verify compares replicas.
  /// Here the host waits for the device. Takes the replica's part of the loss. Returns the step's loss, and
  /// the norm before clipping.
  StepHealth update_(at::Tensor loss, double learning_rate, const std::function<void()>& before_update);
  /// Sums gradients and loss over all ranks. Returns the gradients' square norm, on the device.
  at::Tensor sum_over_ranks_(at::Tensor& loss);
  /// With --verify, compare what several ranks of a replica hold, and what all replicas hold.
  void verify_replicas(parallel::Held held) const;
  void verify_data_replicas(parallel::Held held) const;
  /// Compares the weights so, of sharded ones those of tensor-parallel ranks.
  void verify_weights_();
  void zero_gradients_();
  std::optional<checkpoint::LoadCost> load_or_initialize_();
  int64_t tokens_per_step() const;
  nn::Step make_step(kernels::RandomKey key) const;
  checkpoint::LoadStats loaded(const std::function<checkpoint::LoadStats()>& load) const;
  void read_state(const std::filesystem::path& directory);
  checkpoint::TrainState state() const;

  const comm::Group& replica() const { return mesh_.group(kTensorAxis); }
  const comm::Group& replicas() const { return mesh_.group(kDataAxis); }
  bool has_stages() const { return mesh_.size(kPipelineAxis) > 1; }

  const Job& job_;
  comm::Mesh mesh_;
  std::unique_ptr<model::DecoderWeights> weights_;
  BoundModel model_;
  StageRunner stage_;
  parallel::DataParallel data_parallel_;
  std::optional<checkpoint::LoadCost> load_cost_;
  AdamW optimizer_;
  Schedule schedule_;
  OverlapChoice overlap_;
  int64_t steps_done_ = 0;
  int64_t sequences_ = 0;  // training windows consumed
  const nn::OnPart begin_part_ = [this](int64_t part) { data_parallel_.begin_part_(size_t(part)); };
  // Of the current micro-batch, the parts that are not summed yet are those below this number.
  int64_t unsummed_parts_ = 0;
};

}  // namespace shardwise::train

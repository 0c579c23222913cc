// One rank's trainer: model, optimizer and the training step. loop.h decides when to evaluate, save and stop.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/checkpoint/pending_save.h"
#include "shardwise/parallel/flat_gradients.h"
#include "shardwise/train/bound_model.h"
#include "shardwise/train/finite.h"
#include "shardwise/train/job.h"
#include "shardwise/train/mesh.h"
#include "shardwise/train/optimizer.h"
#include "shardwise/train/overlap_choice.h"
#include "shardwise/train/record.h"
#include "shardwise/train/schedule.h"

namespace shardwise::train {

/// One rank's model, optimizer and training state.
class Trainer {
 public:
  /// Initializes the weights from the seed, or loads them from the checkpoint (collective). `job` must
  /// outlive the trainer; `mesh` is that of connect_mesh or one_replica.
  Trainer(const Job& job, const comm::Mesh& mesh);

  /// Performs the next optimizer step (collective): this replica's micro-batches, sums of gradients over the
  /// replicas, norm, clipping, AdamW. Every loss is divided by the tokens of the whole step, so that sums are
  /// all there is to compute over ranks.
  /// Calls `before_update` once main_grad has the step's gradients, before they are clipped; afterwards they
  /// are zero. Throws NotFiniteError if loss or gradient norm is NaN or Inf; the weights are then unchanged,
  /// and the gradients zero.
  StepRecord step(const std::function<void()>& before_update = {});

  /// Returns the mean loss over the first validation windows (collective), without dropout, label smoothing
  /// and z-loss. Replicas share the windows.
  double evaluate();

  /// Writes the checkpoint `directory`/step-N, which finish() of the result publishes. Collective over the
  /// tensor-parallel ranks of one replica: one suffices, since all have the same bits. Errors: as
  /// checkpoint::PendingSave's.
  checkpoint::PendingSave begin_save(const std::filesystem::path& directory, int64_t keep);

  /// The cost of reading the starting checkpoint; nullopt if the weights were initialized.
  const std::optional<checkpoint::LoadCost>& load_cost() const { return load_cost_; }
  const OverlapChoice& overlap() const { return overlap_; }
  int64_t steps_done() const { return steps_done_; }
  const model::DecoderWeights& weights() const { return *weights_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  /// Runs forward and backward of micro-batch `index` of the step; returns its part of the step's loss, on
  /// the device.
  at::Tensor micro_batch(int64_t index);
  /// Sums and clips the gradients, runs AdamW, with --verify compares replicas, and zeroes the gradients.
  /// Here the host waits for the device. Takes the replica's part of the loss. Returns the step's loss, and
  /// the norm before clipping.
  StepHealth update_(at::Tensor loss, double learning_rate, const std::function<void()>& before_update);
  /// Sums gradients and loss over all ranks. Returns the gradients' square norm, on the device.
  at::Tensor sum_over_ranks_(at::Tensor& loss);
  void verify_replicas() const;
  void zero_gradients_();
  int64_t tokens_per_step() const;
  nn::Step make_step(kernels::RandomKey key) const;
  void read_state(const std::filesystem::path& directory);
  checkpoint::TrainState state() const;

  const comm::Group& replica() const { return mesh_.group(kTensorAxis); }
  const comm::Group& replicas() const { return mesh_.group(kDataAxis); }

  const Job& job_;
  comm::Mesh mesh_;
  std::unique_ptr<model::DecoderWeights> weights_;
  std::optional<checkpoint::LoadCost> load_cost_;
  BoundModel model_;
  std::optional<parallel::FlatGradients> gradients_;  // of several replicas
  AdamW optimizer_;
  Schedule schedule_;
  OverlapChoice overlap_;
  int64_t steps_done_ = 0;
  int64_t sequences_ = 0;  // training windows consumed
};

}  // namespace shardwise::train

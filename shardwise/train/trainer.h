// One rank's trainer: model, optimizer and the training step. loop.h decides when to evaluate, save and stop.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/checkpoint/pending_save.h"
#include "shardwise/train/bound_model.h"
#include "shardwise/train/finite.h"
#include "shardwise/train/job.h"
#include "shardwise/train/optimizer.h"
#include "shardwise/train/overlap_choice.h"
#include "shardwise/train/record.h"
#include "shardwise/train/schedule.h"

namespace shardwise::train {

/// One rank's model, optimizer and training state.
class Trainer {
 public:
  /// Initializes the weights from the seed, or loads them from the checkpoint (collective). `job` must
  /// outlive the trainer.
  Trainer(const Job& job, const comm::Group& group);

  /// Performs the next optimizer step (collective): micro-batches, gradient sync, norm, clipping, AdamW.
  /// Calls `before_update` once main_grad has the step's gradients, before they are clipped; afterwards they
  /// are zero. Throws NotFiniteError if loss or gradient norm is NaN or Inf; the weights are then unchanged,
  /// and the gradients zero.
  StepRecord step(const std::function<void()>& before_update = {});

  /// Returns the mean loss over the first validation windows (collective), without dropout, label smoothing
  /// and z-loss.
  double evaluate();

  /// Writes the checkpoint `directory`/step-N, which finish() of the result publishes (collective). Errors:
  /// as checkpoint::PendingSave's.
  checkpoint::PendingSave begin_save(const std::filesystem::path& directory, int64_t keep);

  /// The cost of reading the starting checkpoint; nullopt if the weights were initialized.
  const std::optional<checkpoint::LoadCost>& load_cost() const { return load_cost_; }
  const OverlapChoice& overlap() const { return overlap_; }
  int64_t steps_done() const { return steps_done_; }
  const model::DecoderWeights& weights() const { return *weights_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  /// Runs forward and backward of micro-batch `index`; returns its part of the step's loss, on the device.
  at::Tensor micro_batch(int64_t index);
  /// Synchronizes and clips the gradients, runs AdamW, with --verify compares replicas, and zeroes the
  /// gradients. Here the host waits for the device. Returns the loss, and the norm before clipping.
  StepHealth update_(const at::Tensor& loss, double learning_rate,
                     const std::function<void()>& before_update);
  void zero_gradients_();
  int64_t tokens_per_step() const;
  nn::Step make_step(kernels::RandomKey key) const;
  void read_state(const std::filesystem::path& directory);
  checkpoint::TrainState state() const;

  const Job& job_;
  comm::Group group_;
  std::unique_ptr<model::DecoderWeights> weights_;
  std::optional<checkpoint::LoadCost> load_cost_;
  BoundModel model_;
  AdamW optimizer_;
  Schedule schedule_;
  OverlapChoice overlap_;
  int64_t steps_done_ = 0;
  int64_t sequences_ = 0;  // training windows consumed
};

}  // namespace shardwise::train

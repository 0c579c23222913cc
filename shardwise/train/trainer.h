// One rank's part of a training run: model, optimizer, and the steps between them. When to evaluate, save and
// stop is loop.h's.
#pragma once
#include <memory>
#include <optional>

#include "shardwise/checkpoint/load_cost.h"
#include "shardwise/train/job.h"
#include "shardwise/train/optimizer.h"
#include "shardwise/train/overlap_choice.h"
#include "shardwise/train/record.h"
#include "shardwise/train/schedule.h"
#include "shardwise/train/stream.h"

namespace shardwise::train {

class Trainer {
 public:
  /// Collective: weights drawn from the seed, or read from the checkpoint. `job` must outlive this.
  Trainer(const Job& job, const comm::Group& group);

  /// Collective: the next optimizer step. Micro-batches, sync, norm, clip, AdamW.
  /// Errors: c10::Error when loss or gradient are not finite (the weights are left as they were).
  StepRecord step();

  /// Collective: mean loss over the first validation windows, without dropout, label smoothing
  /// and z-loss.
  double evaluate();

  /// Collective: writes DIR/step-N. Errors: those of checkpoint::save.
  void save(const std::filesystem::path& directory, int64_t keep);

  /// Of the checkpoint that it began from.
  const std::optional<checkpoint::LoadCost>& load_cost() const { return load_cost_; }
  const OverlapChoice& overlap() const { return overlap_; }
  int64_t steps_done() const { return steps_done_; }
  const model::DecoderWeights& weights() const { return *weights_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  /// Forward and backward; returns its part of the step's loss.
  double micro_batch(int64_t index);
  /// Sync, norm, clip, AdamW; returns the norm before clipping.
  double update_(double loss, double learning_rate);
  int64_t tokens_per_step() const;
  nn::Step make_step(kernels::RandomKey key) const;
  void read_state(const std::filesystem::path& directory);
  checkpoint::TrainState state() const;

  const Job& job_;
  comm::Group group_;
  std::unique_ptr<model::DecoderWeights> weights_;
  std::optional<checkpoint::LoadCost> load_cost_;
  StreamedModel model_;
  AdamW optimizer_;
  Schedule schedule_;
  OverlapChoice overlap_;
  int64_t steps_done_ = 0;
  int64_t sequences_ = 0;  // training windows consumed
};

}  // namespace shardwise::train

// A training step of a model with random weights on random tokens, to be timed.
#pragma once
#include "shardwise/model/decoder.h"
#include "shardwise/train/optimizer.h"

namespace shardwise::bench {

/// What a step processes, and how.
struct StepShape {
  int64_t seq_len, batch_size;
  bool sequence_parallel;
  base::Recompute recompute = base::Recompute::none;
};

/// A model, its optimizer and one batch.
class TrainingStep {
 public:
  /// Collective: draws the weights.
  TrainingStep(const config::Config& config, at::ScalarType dtype, const StepShape& shape,
               const comm::Group& group);

  /// Runs forward, backward, gradient norm, clipping, AdamW, and zeroing of the gradients. Collective.
  void run();

  /// Returns the multiplications and additions of this rank's products with weights in one step, forward and
  /// backward, without what recomputation repeats: 6 for each element of a weight and token.
  int64_t product_operations() const;
  /// Returns the bytes of this rank's shards of the weights.
  int64_t weight_bytes() const;
  /// Returns the loss of the last step.
  double loss() const { return loss_; }

 private:
  template <nn::ResidualStream Stream>
  void run_on();

  StepShape shape_;
  model::DecoderWeights weights_;
  train::AdamW optimizer_;
  at::Tensor ids_;  // [s + 1, b]
  int64_t steps_ = 0;
  double loss_ = 0;
};

}  // namespace shardwise::bench

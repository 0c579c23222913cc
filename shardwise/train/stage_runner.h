// A pipeline stage's share of a step: forwards and backwards of micro-batches, and the messages between
// stages.
#pragma once
#include <functional>
#include <unordered_map>

#include "shardwise/base/pipeline.h"
#include "shardwise/train/batch.h"
#include "shardwise/train/bound_model.h"

namespace shardwise::train {

/// A micro-batch and how to run it.
struct MicroBatch {
  Batch batch;
  nn::Step step;
  nn::LossOptions loss;
};

/// Runs micro-batches through this rank's stage. Stage i sends the residual stream to stage i + 1, and
/// receives its gradient from there, if any parameter of the stages up to i is trained. Tensor-parallel ranks
/// of two stages have the same shards of the stream, so each sends its own.
class StageRunner {
 public:
  /// Returns micro-batch `index` of a step.
  using Make = std::function<MicroBatch(int64_t index)>;

  /// `model` is bound to `weights`, whose stages are those of the ranks of `pipeline`; both must outlive
  /// this.
  StageRunner(const BoundModel& model, const model::DecoderWeights& weights, const comm::Group& pipeline);

  /// Runs forward and backward of the micro-batches in the order of `schedule` (collective over all stages
  /// and over the stage's ranks). Returns the sum of their losses, [1] fp64 on the device; 0 except on the
  /// last stage.
  at::Tensor run(const base::Range& micro_batches, base::PipelineSchedule schedule, const Make& make);
  /// Runs one forward without gradients. Returns its loss; 0 except on the last stage.
  double evaluate(const MicroBatch& one);

  /// Adds the gradient of the last stage's tied head to that of the first stage's embedding, and zeroes it.
  /// The gradients must be summed over tp, and not yet over replicas. Does nothing if nothing is tied, or it
  /// is frozen.
  void add_tied_gradient_();
  /// Copies the first stage's embedding, which loading or an update has changed, into the last stage's tied
  /// head. Does nothing if nothing is tied.
  void publish_tied_weight_();
  /// Returns true if an update changes a tied embedding.
  bool trains_tied_weight() const;

 private:
  /// What a forward leaves for its backward.
  struct Saved {
    at::Tensor input;   // the received stream, a leaf; undefined on the first stage
    at::Tensor output;  // the stream to send, or the loss
  };
  bool is_first() const { return pipeline_.rank() == 0; }
  bool is_last() const { return pipeline_.rank() == pipeline_.size() - 1; }
  at::Tensor received_stream_(const MicroBatch& one) const;
  Saved forward_(const MicroBatch& one) const;
  void backward_(const Saved& saved) const;
  parallel::ParameterPtr tied_embedding() const;

  const BoundModel& model_;
  const model::DecoderWeights& weights_;
  comm::Group pipeline_;
  bool takes_gradient_;   // from the next stage
  bool passes_gradient_;  // to the stage before
};

}  // namespace shardwise::train

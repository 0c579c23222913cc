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

/// Runs micro-batches through this rank's stage, which has one or more chunks of the model's blocks
/// (base::Pipeline). The stage of a chunk sends the residual stream to that of the next chunk, and receives
/// its gradient from there, if any parameter before is trained. Tensor-parallel ranks of two stages have the
/// same shards of the stream, so each sends its own.
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
  /// Where a message comes from or goes to. Tags tell apart messages of two neighbors that are the same rank.
  struct Message {
    int peer, tag;
  };
  bool is_first() const { return pipeline_.rank() == 0; }
  bool is_last() const { return pipeline_.rank() == pipeline_.size() - 1; }
  /// Returns which part of the model a chunk of this stage is.
  int64_t part_of(size_t chunk) const {
    return static_cast<int64_t>(chunk) * pipeline_.size() + pipeline_.rank();
  }
  bool is_end(int64_t part) const { return part == std::ssize(weights_.stage()) * pipeline_.size() - 1; }
  /// The message with the residual stream into a part, and that with its gradient: of this stage or the next.
  Message stream_into(int64_t part) const;
  Message gradient_of(int64_t part) const;
  at::Tensor received_(const MicroBatch& one, const Message& message) const;
  void send_(const at::Tensor& x, const Message& message) const;
  Saved forward_(const MicroBatch& one, size_t chunk) const;
  void backward_(const Saved& saved, size_t chunk) const;
  parallel::ParameterPtr tied_embedding() const;

  const BoundModel& model_;
  const model::DecoderWeights& weights_;
  comm::Group pipeline_;
  // By chunk: whether its output has a gradient, and whether its input has one that another stage needs.
  std::vector<bool> takes_gradient_, passes_gradient_;
};

}  // namespace shardwise::train

// A pipeline stage's share of the forwards of generation.
#pragma once
#include <vector>

#include "shardwise/infer/sharded_sampler.h"
#include "shardwise/model/decoder.h"

namespace shardwise::infer {

/// Runs this rank's stage of forwards. A stage sends the residual stream to the next one; the last stage
/// computes the logits, and sends the sampled tokens to all others. Tensor-parallel ranks of two stages have
/// the same stream, so each sends its own.
class StageForward {
 public:
  /// `pipeline`: the ranks of all stages with this rank's tensor-parallel index; `weights` are of the stage
  /// with this rank's number, and must outlive this.
  StageForward(const model::DecoderWeights& weights, comm::Group pipeline)
      : weights_(weights), pipeline_(std::move(pipeline)) {}

  /// Returns the number of stages.
  int stages() const { return pipeline_.size(); }
  /// Returns true on the stage that samples.
  bool is_last() const { return pipeline_.rank() == pipeline_.size() - 1; }

  /// Returns the logits [n, v/t] of rows `rows` [n] of `ids` [Σ rows, 1], or of all rows if it is undefined
  /// (collective over the stages); an undefined tensor except on the last stage.
  /// Errors: those of model::Decoder::logits, on the first stage.
  at::Tensor logits(const at::Tensor& ids, const at::Tensor& rows, const nn::Step& step) const;

  /// The last stage sends the tokens that a forward sampled, in any number, to the other stages.
  void send(const std::vector<SampledToken>& sampled) const;
  /// Another stage receives them. The order is that of the forwards.
  std::vector<SampledToken> receive(size_t count) const;

 private:
  nn::Placed<nn::Invariant> input(const at::Tensor& ids, const nn::Step& step) const;

  const model::DecoderWeights& weights_;
  comm::Group pipeline_;
};

}  // namespace shardwise::infer

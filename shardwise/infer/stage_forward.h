// A pipeline stage's share of the forwards of generation and evaluation.
#pragma once
#include <string>
#include <vector>

#include "shardwise/model/decoder.h"

namespace shardwise::infer {

/// Runs this rank's stage of forwards. A stage sends the residual stream to the next one; the last stage
/// computes the logits or the loss, and sends its results to all others. Tensor-parallel ranks of two stages
/// have the same shards of the stream, so each sends its own.
class StageForward {
 public:
  /// `pipeline`: the ranks of all stages with this rank's tensor-parallel index; `weights` must outlive this.
  /// Errors: c10::ValueError, beginning with `where`, unless `weights` are of the stage with this rank's
  /// number there, in one run of blocks.
  StageForward(const std::string& where, const model::DecoderWeights& weights, comm::Group pipeline);

  /// Returns the number of stages.
  int stages() const { return pipeline_.size(); }
  /// Returns true on the stage that has the results.
  bool is_last() const { return pipeline_.rank() == pipeline_.size() - 1; }

  /// Returns the logits [n, v/t] of rows `rows` [n] of `ids` [Σ rows, 1], or of all rows if it is undefined
  /// (collective over the stages); an undefined tensor except on the last stage.
  /// Errors: those of model::Decoder::logits, on the first stage.
  at::Tensor logits(const at::Tensor& ids, const at::Tensor& rows, const nn::Step& step) const;
  /// Returns the loss of windows [s, b] under TP+SP, a scalar, as model::Decoder::loss does; 0 except on the
  /// last stage. Collective. Errors: those of model::Decoder::loss.
  double loss(const at::Tensor& ids, const at::Tensor& labels, const nn::LossOptions& options,
              const nn::Step& step) const;

  /// The last stage sends the results of a forward, in any number, to the other stages.
  void send(const std::vector<double>& results) const;
  /// Another stage receives them. The order is that of the forwards.
  std::vector<double> receive(size_t count) const;

 private:
  template <nn::ResidualStream Stream>
  nn::Placed<Stream> input(const at::Tensor& ids, int64_t rows, const nn::Step& step) const;
  void send_stream(const at::Tensor& x) const;

  const model::DecoderWeights& weights_;
  comm::Group pipeline_;
};

}  // namespace shardwise::infer

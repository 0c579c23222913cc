// A decoder-only Transformer: one DecoderWeights, and a Decoder over it for each residual stream type.
#pragma once
#include "shardwise/model/decoder_weights.h"
#include "shardwise/nn/linear_cross_entropy.h"

namespace shardwise::model {

/// A decoder whose residual stream has the type `Stream`: replicated under TP, sharded along the sequence
/// under SP.
template <nn::ResidualStream Stream>
class Decoder {
 public:
  /// `weights` must outlive this. An `observer` is called with the intermediate values of every forward.
  explicit Decoder(const DecoderWeights& weights, nn::Observer observer = {})
      : weights_(weights), observer_(std::move(observer)) {}

  /// Computes the logits. Shapes: `ids` [s, b] int64, the same on every rank → logits [s, b, v/t] S<−1>.
  /// Errors: c10::ValueError before any communication, for an inconsistent step (nn::check_step), an id
  /// outside [0, v), and a sequence longer than the learned position embedding.
  nn::Placed<nn::Sharded<nn::kFeature>> logits(const at::Tensor& ids, const nn::Step& step) const;

  /// Computes the logits of selected rows in generation. Appends the new tokens' keys and values to the
  /// caches of step.cached; the caller advances their lengths. Shapes: packed batch `ids` [Σ rows, 1], `rows`
  /// [n] int64 → logits [n, 1, v/t] S<−1>. Errors: those of logits.
  nn::Placed<nn::Sharded<nn::kFeature>> next_logits(
      const at::Tensor& ids, const at::Tensor& rows,
      const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant>;

  /// Computes the cross-entropy with `labels` [s, b] (already shifted), a scalar, I. Call zero_grad_ before
  /// it and backward on it; see nn/linear_cross_entropy.h. Errors: those of logits and
  /// nn::linear_cross_entropy.
  nn::Placed<nn::Invariant> loss(const at::Tensor& ids, const at::Tensor& labels,
                                 const nn::LossOptions& options, const nn::Step& step) const;

  /// The same in parts, for the stages of a pipeline: each may have any of them. Computes the residual
  /// stream before the first block. Errors: those of logits.
  nn::Placed<Stream> embedded(const at::Tensor& ids, const nn::Step& step) const;
  /// Runs a run of the stage's blocks on the residual stream, [s, b, h] or [s/t, b, h].
  nn::Placed<Stream> through_blocks(nn::Placed<Stream> x, size_t chunk, const nn::Step& step) const;
  /// Computes the logits of the residual stream after the last block.
  nn::Placed<nn::Sharded<nn::kFeature>> logits_of(nn::Placed<Stream> x, const nn::Step& step) const;
  /// Computes what next_logits does, of the residual stream after the last block.
  nn::Placed<nn::Sharded<nn::kFeature>> next_logits_of(
      nn::Placed<Stream> x, const at::Tensor& rows,
      const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant>;
  /// Computes the cross-entropy of the residual stream after the last block. Errors: those of
  /// nn::linear_cross_entropy.
  nn::Placed<nn::Invariant> loss_of(nn::Placed<Stream> x, const at::Tensor& labels,
                                    const nn::LossOptions& options, const nn::Step& step) const;

 private:
  nn::DeferredReduction<Stream> run_blocks(nn::Placed<Stream> x, size_t chunk, const nn::Step& step) const;
  nn::DeferredReduction<Stream> hidden(const at::Tensor& ids, const nn::Step& step) const;
  nn::Placed<Stream> normed(nn::DeferredReduction<Stream> x, const nn::Step& step) const;
  nn::Placed<nn::Sharded<nn::kFeature>> head_of(const nn::Placed<Stream>& normed, const nn::Step& step) const;
  nn::Placed<nn::Sharded<nn::kFeature>> head_of_rows(
      nn::DeferredReduction<Stream> x, const at::Tensor& rows,
      const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant>;
  const DecoderWeights& weights_;
  nn::Observer observer_;
};

extern template class Decoder<nn::Invariant>;
extern template class Decoder<nn::Sharded<nn::kSequence>>;

}  // namespace shardwise::model

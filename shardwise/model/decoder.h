// A decoder-only Transformer: weights once, and an assembly over them per residual stream.
#pragma once
#include <vector>

#include "shardwise/model/config.h"
#include "shardwise/model/layout.h"
#include "shardwise/nn/block.h"
#include "shardwise/nn/embedding.h"
#include "shardwise/nn/loss.h"
#include "shardwise/nn/positions.h"

namespace shardwise::model {

/// One rank's slices of all weights. The same object serves every stream.
class DecoderWeights {
 public:
  /// Allocates, uninitialized: fill with `initialize_` or a checkpoint. What the config quantizes has codes
  /// in place of numbers; the rest, and what passes between, is `dtype`.
  DecoderWeights(const Config& config, const comm::Group& group, at::ScalarType dtype);
  DecoderWeights(const DecoderWeights&) = delete;

  /// Draws every weight from `seed`, the same at every tp size: normal(0, initializer_range), the two
  /// projections into the stream scaled by 1/sqrt(2·layers), norms one, biases zero.
  void initialize_(uint64_t seed);

  const Config& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  const comm::Group& group() const { return group_; }
  at::ScalarType dtype() const { return dtype_; }
  /// Every parameter once, in a fixed order (a tied head is the embedding).
  const nn::UsedParameters& roles() const { return roles_; }
  /// What the optimizer's loops read; the stream decides which gradients are terms to be summed.
  template <nn::ResidualStream Stream>
  parallel::ParamSpecs specs() const {
    return nn::specs_of<Stream>(roles_);
  }

 private:
  template <nn::ResidualStream>
  friend class Decoder;
  Config config_;
  comm::Group group_;
  at::ScalarType dtype_;
  Layout layout_;
  nn::VocabParallelEmbedding embedding_;
  std::optional<nn::LearnedPositions> positions_;
  std::vector<nn::BlockLayers> blocks_;
  nn::Norm norm_;
  nn::ColumnParallelLinear head_;
  nn::UsedParameters roles_;
};

template <nn::ResidualStream Stream>
class Decoder {
 public:
  /// `weights` outlives this. `observer`, if any, is shown what every forward computes on its way.
  explicit Decoder(const DecoderWeights& weights, nn::Observer observer = {})
      : weights_(weights), observer_(std::move(observer)) {}

  /// `ids` [s, b] int64, the same on every rank → logits [s, b, v/t] S<−1>. Errors: c10::ValueError, before
  /// anything communicates, for a step that does not fit (nn::check_step) and an id outside [0, v); for a
  /// sequence longer than a table of learned positions.
  nn::Placed<nn::Sharded<nn::kFeature>> logits(const at::Tensor& ids, const nn::Step& step) const;

  /// Continuing texts: the logits of `rows` [n] int64 of the packed batch `ids` [Σ rows, 1], [n, 1, v/t]
  /// S<−1>. step.cached's caches hold the new tokens after it, their lengths still to be moved on. Errors:
  /// the same.
  nn::Placed<nn::Sharded<nn::kFeature>> next_logits(
      const at::Tensor& ids, const at::Tensor& rows,
      const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant>;

  /// Cross-entropy of `labels` [s, b] (already shifted); see nn/loss.h. Scalar, I. Errors: those of both.
  nn::Placed<nn::Invariant> loss(const at::Tensor& ids, const at::Tensor& labels,
                                 const nn::LossOptions& options, const nn::Step& step) const;

 private:
  nn::DeferredReduction<Stream> hidden(const at::Tensor& ids, const nn::Step& step) const;
  const DecoderWeights& weights_;
  nn::Observer observer_;
};

extern template class Decoder<nn::Invariant>;
extern template class Decoder<nn::Sharded<nn::kSequence>>;

}  // namespace shardwise::model

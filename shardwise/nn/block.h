// One pre-norm decoder block. It reads the same for TP (Stream = Invariant) and TP+SP (Stream =
// Sharded<kSequence>): the placement of the residual stream decides which collectives the linear layers
// contain.
#pragma once
#include "shardwise/nn/attention.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/mlp.h"
#include "shardwise/nn/norm.h"
#include "shardwise/nn/observer.h"
#include "shardwise/parallel/recompute.h"

namespace shardwise::nn {

/// A block's weights; they serve both streams. The model chooses the norm, the MLP and the biases.
struct BlockLayers {
  int64_t layer;
  Norm norm1;
  ColumnParallelLinear qkv;
  CausalSelfAttention attend;
  RowParallelLinear out;
  Norm norm2;
  Mlp mlp;

  /// What attention adds to the residual stream, of its normalized input: [s, b, h] or its sequence shard →
  /// the same.
  template <parallel::ColumnInput In>
  auto attention(const Placed<In>& x, const Step& step) const {
    return out.to_residual<In>(attend(qkv(x, step), step), step);
  }

  void append_parameters(UsedParameters& parameters) const;
  /// Whether any of its parameters is trained.
  bool is_trained() const;
};

/// Cost per forward and backward: docs/algorithms.md. Saved for backward: plan/memory.h; the graph shares the
/// parameters that it needs.
template <ResidualStream Stream>
class Block {
 public:
  using Residual = DeferredReduction<Stream>;

  /// `layers` outlives this.
  explicit Block(const BlockLayers& layers) : layers_(layers) {}

  /// `x` [s, b, h], or its sequence shard → the same. The last reduction may be left to the next block's
  /// norm.
  Residual operator()(Residual x, const Step& step, OutputUse use = OutputUse::needed) const {
    x = x + attention(x, step);
    return x + mlp(x, step, use);
  }
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return (*this)(Residual(x), step).reduced(step);
  }

  /// What the attention branch adds to `x`, whose pending reduction it performs.
  Residual attention(Residual& x, const Step& step) const {
    const BlockLayers& w = layers_;
    return dropout(w.attention(w.norm1(x, step), step), step, {w.layer, Place::attention_output});
  }
  /// What the MLP branch adds to `x`, whose pending reduction it performs.
  Residual mlp(Residual& x, const Step& step, OutputUse use = OutputUse::needed) const {
    const BlockLayers& w = layers_;
    return dropout(w.mlp(w.norm2(x, step), step, use), step, {w.layer, Place::mlp_output}, use);
  }

 private:
  const BlockLayers& layers_;
};

/// A block as a model runs it: recomputed in backward where the step asks for it, its outputs shown to
/// `observer`, for which reductions are not deferred.
template <ResidualStream Stream>
DeferredReduction<Stream> run_block(const BlockLayers& layers, DeferredReduction<Stream> x, const Step& step,
                                    const Observer* observer = nullptr) {
  const Stage after_attention{Stage::attention, layers.layer}, after_mlp{Stage::mlp, layers.layer};
  if (step.recompute == base::Recompute::full) {
    const auto forward = [layers, step](const Placed<Stream>& again, OutputUse use) {
      return Block<Stream>(layers)(DeferredReduction<Stream>(again), step, use).reduced(step);
    };
    return seen(observer, after_mlp, parallel::recomputed(x.reduced(step), layers.is_trained(), forward));
  }
  const Block<Stream> block(layers);
  if (!observer || !*observer) return block(std::move(x), step);
  x = seen(observer, after_attention, (x + block.attention(x, step)).reduced(step));
  return seen(observer, after_mlp, (x + block.mlp(x, step)).reduced(step));
}

}  // namespace shardwise::nn

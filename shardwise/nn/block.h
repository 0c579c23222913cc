// A pre-norm decoder block: x = x + attention(norm1(x)), then x = x + mlp(norm2(x)).
//
// One source serves TP (Stream = Invariant) and TP+SP (Stream = Sharded<kSequence>), because the placement of
// the residual stream x selects the collectives that the linear layers contain:
//
//           at the start of a branch                      at the end of a branch
//   TP      f: nothing, all_reduce in backward            f*: all_reduce, nothing in backward
//   TP+SP   g: all_gather, reduce_scatter in backward     g*: reduce_scatter, all_gather in backward
#pragma once
#include "shardwise/nn/attention.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/mlp.h"
#include "shardwise/nn/norm.h"
#include "shardwise/nn/observer.h"
#include "shardwise/parallel/recompute.h"

namespace shardwise::nn {

/// The layers of a block, for TP and TP+SP alike. The model chooses the norm, the MLP and the biases.
struct BlockLayers {
  int64_t layer;               // the block's index in the model
  Norm norm1;                  // before attention
  ColumnParallelLinear qkv;    // q, k and v as one product
  CausalSelfAttention attend;  // over the local heads
  RowParallelLinear out;       // the projection after attention
  Norm norm2;                  // before the MLP
  Mlp mlp;                     // gated or with GeLU

  /// Returns the output of the attention branch for its normalized input `x`.
  /// Shapes: `x` [s, b, h] I or R → [s, b, h] I; [s/t, b, h] S<0> → the same.
  template <parallel::ColumnInput In>
  auto attention(const Placed<In>& x, const Step& step) const {
    return out.to_residual<In>(attend(qkv(x, step), step), step);
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const;
  /// True if at least one parameter is trained.
  bool is_trained() const;
};

/// The forward of a block for one placement of the residual stream. Autograd records its backward, which
/// shares ownership of the parameters. Cost: docs/algorithms.md §3. Saved: plan/memory.h.
template <ResidualStream Stream>
class Block {
 public:
  /// `layers` must outlive this.
  explicit Block(const BlockLayers& layers) : layers_(layers) {}

  /// Runs both branches. The reduction of the MLP branch may stay pending for the next block's norm.
  /// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
  DeferredReduction<Stream> operator()(DeferredReduction<Stream> x, const Step& step,
                                       OutputUse use = OutputUse::needed) const {
    x = x + attention(x, step);
    return x + mlp(x, step, use);
  }
  /// Runs both branches and completes their reductions.
  /// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return (*this)(DeferredReduction<Stream>(x), step).reduced(step);
  }

  /// Completes the pending reduction of `x` and returns the output of the attention branch.
  DeferredReduction<Stream> attention(DeferredReduction<Stream>& x, const Step& step) const {
    const BlockLayers& w = layers_;
    return dropout(w.attention(w.norm1(x, step), step), step, {w.layer, DropoutSite::Site::attention_output});
  }
  /// Completes the pending reduction of `x` and returns the output of the MLP branch.
  DeferredReduction<Stream> mlp(DeferredReduction<Stream>& x, const Step& step,
                                OutputUse use = OutputUse::needed) const {
    const BlockLayers& w = layers_;
    return dropout(w.mlp(w.norm2(x, step), step, use), step, {w.layer, DropoutSite::Site::mlp_output}, use);
  }

 private:
  const BlockLayers& layers_;
};

/// Runs a block with the step's recomputation and calls `observer` with the output of each branch. With an
/// observer no reduction stays pending.
template <ResidualStream Stream>
DeferredReduction<Stream> run_block(const BlockLayers& layers, DeferredReduction<Stream> x, const Step& step,
                                    const Observer* observer = nullptr) {
  const Stage after_attention{Stage::Kind::attention, layers.layer},
      after_mlp{Stage::Kind::mlp, layers.layer};
  if (step.recompute == base::Recompute::full) {
    const auto forward = [layers, step](const Placed<Stream>& input, OutputUse use) {
      return Block<Stream>(layers)(DeferredReduction<Stream>(input), step, use).reduced(step);
    };
    return observed(observer, after_mlp, parallel::recomputed(x.reduced(step), layers.is_trained(), forward));
  }
  const Block<Stream> block(layers);
  if (!observer || !*observer) return block(std::move(x), step);
  x = observed(observer, after_attention, (x + block.attention(x, step)).reduced(step));
  return observed(observer, after_mlp, (x + block.mlp(x, step)).reduced(step));
}

}  // namespace shardwise::nn

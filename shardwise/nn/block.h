// One pre-norm decoder block. It reads the same for TP (Stream = Invariant) and TP+SP (Stream =
// Sharded<kSequence>): the stream's type decides which collectives the linear layers contain.
#pragma once
#include "shardwise/nn/attention.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/nn/halves.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/mlp.h"
#include "shardwise/nn/norm.h"
#include "shardwise/nn/observer.h"
#include "shardwise/nn/residual.h"
#include "shardwise/parallel/recompute.h"

namespace shardwise::nn {

/// A block's weights; they serve both streams. Which norm, which MLP and which biases is the model's affair.
struct BlockLayers {
  int64_t layer;
  Norm norm1;
  ColumnParallelLinear qkv;
  CausalSelfAttention attend;
  RowParallelLinear out;
  Norm norm2;
  Mlp mlp;

  void append_parameters(UsedParameters& roles) const;
  /// Whether any of its parameters is.
  bool is_trained() const;
};

/// Cost per forward and backward: docs/algorithms.md. Saved for backward: plan/memory.h; a graph holds the
/// parameters that it needs by itself.
template <ResidualStream Stream>
class Block {
 public:
  /// `layers` outlives this, and so does `observer`.
  explicit Block(const BlockLayers& layers, const Observer* observer = nullptr)
      : layers_(layers), observer_(observer) {}

  /// `x` [s, b, h], or its sequence shard → the same.
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return (*this)(Residual<Stream>(x), step).taken(step);
  }
  /// The same between blocks, whose last sum may be left to the next norm.
  Residual<Stream> operator()(Residual<Stream> x, const Step& step) const {
    return seen(observer_, {Stage::mlp, layers_.layer}, output(std::move(x), step), step);
  }

  /// Of a batch in halves, which take turns within the block and between blocks.
  void operator()(Halves& x) const requires std::same_as<Stream, Invariant> {
    x.apply([this](Residual<Stream> half, const Step& step) { return attention(std::move(half), step); });
    x.apply([this](Residual<Stream> half, const Step& step) {
      return seen(observer_, {Stage::mlp, layers_.layer}, mlp(std::move(half), step, OutputUse::needed),
                  step);
    });
  }

 private:
  Residual<Stream> output(Residual<Stream> x, const Step& step) const {
    if (step.recompute != base::Recompute::full) return forward(std::move(x), step, OutputUse::needed);
    return Residual<Stream>(
        parallel::recomputed(std::move(x).taken(step), layers_.is_trained(),
                             [layers = layers_, step](const Placed<Stream>& again, OutputUse use) {
                               return Block(layers).forward(Residual<Stream>(again), step, use).taken(step);
                             }));
  }

  Residual<Stream> forward(Residual<Stream> x, const Step& step, OutputUse use) const {
    return mlp(attention(std::move(x), step), step, use);
  }

  Residual<Stream> attention(Residual<Stream> in, const Step& step) const {
    const BlockLayers& w = layers_;
    const Normed<Stream> x = w.norm1(std::move(in), step);
    auto added = w.out.addend<Stream>(w.attend(w.qkv(x.norm, step), step), step);
    return seen(observer_, {Stage::attention, w.layer},
                x.x + dropout(std::move(added), step, {w.layer, Place::attention_output}), step);
  }

  Residual<Stream> mlp(Residual<Stream> in, const Step& step, OutputUse use) const {
    const BlockLayers& w = layers_;
    const Normed<Stream> x = w.norm2(std::move(in), step);
    return x.x + dropout(w.mlp(x.norm, step, use), step, {w.layer, Place::mlp_output}, use);
  }

  const BlockLayers& layers_;
  const Observer* observer_;
};

}  // namespace shardwise::nn

// One pre-norm decoder block. It reads the same for TP (Stream = Invariant) and TP+SP (Stream =
// Sharded<kSequence>): the stream's type decides which collectives the linear layers contain.
#pragma once
#include "shardwise/nn/attention.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/mlp.h"
#include "shardwise/nn/norm.h"
#include "shardwise/nn/observer.h"
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

  void append_roles(Roles& roles) const;
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
    return seen(observer_, {Stage::mlp, layers_.layer}, output(x, step));
  }

 private:
  Placed<Stream> output(const Placed<Stream>& x, const Step& step) const {
    if (step.recompute != base::Recompute::full) return forward(x, step, Value::needed);
    return parallel::recomputed(x, layers_.is_trained(),
                                [layers = layers_, step](const Placed<Stream>& again, Value value) {
                                  return Block(layers).forward(again, step, value);
                                });
  }

  Placed<Stream> forward(Placed<Stream> x, const Step& step, Value value) const {
    const auto& [layer, norm1, qkv, attend, out, norm2, mlp] = layers_;
    x = x + dropout(out.to<Stream>(attend(qkv(norm1(x, step), step), step), step), step,
                    {layer, Place::attention_output});
    x = seen(observer_, {Stage::attention, layer}, std::move(x));
    return x + dropout(mlp(norm2(x, step), step, value), step, {layer, Place::mlp_output}, value);
  }

  const BlockLayers& layers_;
  const Observer* observer_;
};

}  // namespace shardwise::nn

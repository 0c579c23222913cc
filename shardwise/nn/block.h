// One pre-norm decoder block. It reads the same for TP (Stream = Invariant) and TP+SP (Stream =
// Sharded<kSequence>): the stream's type decides which collectives the linear layers contain.
#pragma once
#include "shardwise/nn/attention.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/mlp.h"
#include "shardwise/nn/norm.h"

namespace shardwise::nn {

/// A block's weights; they serve both streams.
struct BlockLayers {
  int64_t layer;
  RMSNorm norm1;
  ColumnParallelLinear qkv;
  CausalSelfAttention attend;
  RowParallelLinear out;
  RMSNorm norm2;
  GatedMlp mlp;

  void append_roles(Roles& roles) const;
};

/// Cost per forward and backward: docs/algorithms.md. Saved for backward: plan/memory.h.
template <ResidualStream Stream>
class Block {
 public:
  explicit Block(const BlockLayers& layers) : layers_(layers) {}

  /// `x` [s, b, h], or its sequence shard → the same.
  Placed<Stream> operator()(Placed<Stream> x, const Step& step) const {
    const auto& [layer, norm1, qkv, attend, out, norm2, mlp] = layers_;
    x = x + dropout(out.to<Stream>(attend(qkv(norm1(x, step), step), step), step), step,
                    {layer, Place::attention_output});
    return x + dropout(mlp(norm2(x, step), step), step, {layer, Place::mlp_output});
  }

 private:
  const BlockLayers& layers_;
};

}  // namespace shardwise::nn

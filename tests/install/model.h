// A custom model: a small Transformer from the layers of shardwise/nn, with an MLP that the library
// does not have.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/relu.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/nn/attention.h"
#include "shardwise/nn/embedding.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/linear_cross_entropy.h"
#include "shardwise/nn/norm.h"

namespace consumer {

using namespace shardwise::nn;
using shardwise::base::ShardRule, shardwise::base::Split;
using shardwise::comm::Group;

/// The sizes of the model. Neither heads nor ffn are divisible by two.
struct Sizes {
  int64_t layers = 2, hidden = 32, heads = 6, kv_heads = 3, head_dim = 8, ffn = 41, vocab = 23;
};

/// An MLP with a squared ReLU, down(relu(up x)²). Source: So et al. 2021 (Primer).
class SquaredReluMlp {
 public:
  SquaredReluMlp(const std::string& name, const Sizes& sizes, const Group& group)
      : ffn_(Split::even("ffn", sizes.ffn, group.size())),
        up_(name + ".up", {sizes.hidden, sizes.ffn}, ShardRule::sharded(/*dim=*/0, ffn_), group, at::kFloat),
        down_(name + ".down", {sizes.ffn, sizes.hidden}, ShardRule::sharded(/*dim=*/1, ffn_), group,
              at::kFloat) {}

  /// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    const Placed<Sharded<kFeature>> hidden = up_(x, step);  // f or g, then the product
    const Placed<Sharded<kFeature>> activated(at::relu(hidden.local()).square());
    return down_.to<Stream>(activated, step);  // the product, then f* or g*
  }

  void append_parameters(UsedParameters& parameters) const {
    up_.append_parameters(parameters);
    down_.append_parameters(parameters);
  }

 private:
  Split ffn_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

/// The column-parallel projection q|k|v, the heads of this rank, and the row-parallel projection out.
class Attention {
 public:
  Attention(const std::string& name, const Sizes& sizes, const Group& group)
      : heads_(Split::even("heads", sizes.heads, group.size())),
        kv_(Split::kv_heads_of(heads_, sizes.kv_heads)),
        qkv_(name + ".qkv", {sizes.hidden, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim},
             ShardRule{/*dim=*/0, {{heads_, sizes.head_dim}, {kv_, sizes.head_dim}, {kv_, sizes.head_dim}}},
             group, at::kFloat),
        attend_(HeadLayout::of(heads_, kv_, sizes.head_dim, group.rank()),
                std::make_shared<Rotary>(std::vector<double>{1, 0.1, 0.01, 0.001})),
        out_(name + ".out", {sizes.heads * sizes.head_dim, sizes.hidden},
             ShardRule::sharded(/*dim=*/1, heads_, sizes.head_dim), group, at::kFloat) {}

  /// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return out_.to<Stream>(attend_(qkv_(x, step), step), step);
  }

  void append_parameters(UsedParameters& parameters) const {
    qkv_.append_parameters(parameters);
    out_.append_parameters(parameters);
  }

 private:
  Split heads_, kv_;
  ColumnParallelLinear qkv_;
  CausalSelfAttention attend_;
  RowParallelLinear out_;
};

/// A pre-norm block in two statements.
struct Block {
  RMSNorm norm1, norm2;
  Attention attention;
  SquaredReluMlp mlp;

  Block(const std::string& name, const Sizes& sizes, const Group& group)
      : norm1(name + ".norm1", sizes.hidden, /*eps=*/1e-5, group, at::kFloat),
        norm2(name + ".norm2", sizes.hidden, /*eps=*/1e-5, group, at::kFloat),
        attention(name + ".attention", sizes, group),
        mlp(name + ".mlp", sizes, group) {}

  template <ResidualStream Stream>
  Placed<Stream> operator()(Placed<Stream> x, const Step& step) const {
    x = x + attention(norm1(x, step), step);
    return x + mlp(norm2(x, step), step);
  }

  void append_parameters(UsedParameters& parameters) const {
    norm1.append_parameters(parameters);
    attention.append_parameters(parameters);
    norm2.append_parameters(parameters);
    mlp.append_parameters(parameters);
  }
};

/// A decoder whose output head is its embedding.
class Model {
 public:
  Model(const Sizes& sizes, const Group& group)
      : vocab_(Split::even("vocab", sizes.vocab, group.size())),
        embedding_("embedding", sizes.hidden, vocab_, shardwise::parallel::Init::normal(0.02), group,
                   at::kFloat),
        norm_("norm", sizes.hidden, /*eps=*/1e-5, group, at::kFloat),
        head_(ColumnParallelLinear::tied_to(embedding_.weight())) {
    for (int64_t i = 0; i < sizes.layers; ++i)
      blocks_.emplace_back("layers." + std::to_string(i), sizes, group);
  }

  /// Returns the mean cross-entropy of the next token. Shapes: `ids` and `labels` [s, b] int64 → a scalar.
  template <ResidualStream Stream>
  Placed<Invariant> loss(const at::Tensor& ids, const at::Tensor& labels, const Step& step) const {
    Placed<Stream> x = embedding_.to<Stream>(ids, step);
    for (const Block& block : blocks_) x = block(x, step);
    return linear_cross_entropy(norm_(x, step), head_, labels, double(labels.numel()), step);
  }

  /// Every parameter once: the head adds none of its own.
  UsedParameters parameters() const {
    UsedParameters parameters;
    embedding_.append_parameters(parameters);
    for (const Block& block : blocks_) block.append_parameters(parameters);
    norm_.append_parameters(parameters);
    return parameters;
  }

 private:
  Split vocab_;
  VocabParallelEmbedding embedding_;
  std::vector<Block> blocks_;
  RMSNorm norm_;
  ColumnParallelLinear head_;
};

}  // namespace consumer

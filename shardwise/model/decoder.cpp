// How a decoder is put together: embedding, blocks, norm, head. The stream's type is the only mention of
// parallelism.
#include "shardwise/model/decoder.h"

#include <cmath>

namespace shardwise::model {

using base::ShardRule;
using nn::BlockLayers;
using nn::ColumnParallelLinear;
using nn::LinearOptions;
using nn::RowParallelLinear;
using parallel::Init;

namespace {

/// What every layer is built from.
struct Parts {
  const Config& config;
  const Layout& layout;
  const comm::Group& group;
  at::ScalarType dtype;
  std::shared_ptr<nn::Rotary> rotary;

  ColumnParallelLinear column(const std::string& name, bool has_bias, const ShardRule& rule) const {
    int64_t out_features = 0;
    for (const base::Segment& segment : rule.segments) out_features += segment.size();
    LinearOptions options(config.hidden_size, out_features);
    options.has_bias = has_bias;
    options.init = Init::normal(config.initializer_range);
    return {name, options, rule, group, dtype};
  }

  /// Into the stream: scaled down by depth, so that the stream's variance does not grow with it (GPT-2 §2.3).
  RowParallelLinear row(const std::string& name, bool has_bias, const ShardRule& rule) const {
    LinearOptions options(rule.segments[0].size(), config.hidden_size);
    options.has_bias = has_bias;
    options.init = Init::normal(config.initializer_range / std::sqrt(2.0 * config.num_hidden_layers));
    return {name, options, rule, group, dtype};
  }

  nn::RMSNorm norm(const std::string& name) const {
    return {name, config.hidden_size, config.norm_eps, group, dtype};
  }
};

BlockLayers make_block(const Parts& parts, int64_t layer) {
  const auto& [config, layout, group, dtype, rotary] = parts;
  const std::string name = "model.layers." + std::to_string(layer) + ".";
  const int64_t d = config.head_dim;
  const ShardRule qkv{/*dim=*/0, {{layout.heads, d}, {layout.kv_heads, d}, {layout.kv_heads, d}}};
  const ShardRule gate_up{/*dim=*/0, {{layout.ffn}, {layout.ffn}}};
  const auto heads = nn::HeadLayout::of(layout.heads, layout.kv_heads, d, group.rank());
  return {layer,
          parts.norm(name + "input_layernorm"),
          parts.column(name + "self_attn.qkv_proj", config.qkv_bias, qkv),
          nn::CausalSelfAttention(heads, rotary),
          parts.row(name + "self_attn.o_proj", config.attention_out_bias,
                    ShardRule::cut(/*dim=*/1, layout.heads, d)),
          parts.norm(name + "post_attention_layernorm"),
          {parts.column(name + "mlp.gate_up_proj", config.mlp_bias, gate_up),
           parts.row(name + "mlp.down_proj", config.mlp_bias, ShardRule::cut(/*dim=*/1, layout.ffn))}};
}

std::vector<BlockLayers> make_blocks(const Parts& parts) {
  std::vector<BlockLayers> blocks;
  for (int64_t layer = 0; layer < parts.config.num_hidden_layers; ++layer)
    blocks.push_back(make_block(parts, layer));
  return blocks;
}

/// A tied head multiplies by the embedding's own parameter: their two gradients add up in one main_grad.
ColumnParallelLinear make_head(const Parts& parts, const nn::VocabParallelEmbedding& embedding) {
  if (parts.config.tie_word_embeddings) return ColumnParallelLinear::tied_to(embedding.weight());
  return parts.column("lm_head", /*has_bias=*/false, ShardRule::cut(/*dim=*/0, parts.layout.vocab));
}

/// Until their layers are here, other models are refused rather than built wrong.
const Config& built(const Config& config) {
  const bool is_built = config.norm == Norm::rms && config.positions == Positions::rotary &&
                        config.is_gated() && !config.qk_norm && !config.sliding_window;
  TORCH_CHECK_VALUE(is_built,
                    "decoder: must be of RMSNorm, rotary positions and gated silu, without q/k norm or a ",
                    "sliding window; got another, of model_type ", config.model_type);
  return config;
}

}  // namespace

DecoderWeights::DecoderWeights(const Config& config, const comm::Group& group, at::ScalarType dtype)
    : config_(built(config)),
      group_(group),
      layout_(make_layout(config, group.size())),
      embedding_("model.embed_tokens", config.hidden_size, layout_.vocab,
                 Init::normal(config.initializer_range), group, dtype),
      blocks_(make_blocks(
          {config_, layout_, group_, dtype, std::make_shared<nn::Rotary>(inverse_frequencies(config))})),
      norm_("model.norm", config.hidden_size, config.norm_eps, group, dtype),
      head_(make_head({config_, layout_, group_, dtype, nullptr}, embedding_)) {
  embedding_.append_roles(roles_);
  for (const BlockLayers& block : blocks_) block.append_roles(roles_);
  norm_.append_roles(roles_);
  if (!config.tie_word_embeddings) head_.append_roles(roles_);
}

void DecoderWeights::initialise_(uint64_t seed) {
  const auto key = kernels::RandomKey::of(seed);
  for (const nn::Role& role : roles_) parallel::initialise_(*role.parameter, key, group_);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::logits(const at::Tensor& ids,
                                                              const nn::Step& step) const {
  const auto& w = weights_;
  auto x =
      nn::dropout(w.embedding_.template to<Stream>(ids, step), step, {/*layer=*/-1, nn::Place::embedding});
  for (const BlockLayers& layers : w.blocks_) x = nn::Block<Stream>(layers)(x, step);
  return w.head_(w.norm_(x, step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Invariant> Decoder<Stream>::loss(const at::Tensor& ids, const at::Tensor& labels,
                                                double valid_tokens, const nn::Step& step) const {
  return nn::cross_entropy(logits(ids, step), labels, weights_.layout_.vocab, valid_tokens, step);
}

template class Decoder<nn::Invariant>;
template class Decoder<nn::Sharded<nn::kSequence>>;

}  // namespace shardwise::model

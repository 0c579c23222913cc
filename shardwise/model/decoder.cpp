// Builds a decoder from embedding, blocks, norm and lm_head. Parallelism appears only as the type of the
// residual stream.
#include "shardwise/model/decoder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cmath>

#include "shardwise/nn/split_batch.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::model {

using base::ShardRule;
using nn::BlockLayers;
using nn::ColumnParallelLinear;
using nn::LinearOptions;
using nn::RowParallelLinear;
using parallel::Init;

namespace {

/// Builds the layers.
struct LayerFactory {
  const Config& config;
  const Layout& layout;
  const comm::Group& group;
  at::ScalarType dtype;
  std::shared_ptr<nn::Rotary> rotary;

  /// Returns the format of a weight, or nullopt if the config does not quantize it.
  std::optional<quant::Format> format(const std::string& weight) const {
    if (!is_quantized(config, weight)) return std::nullopt;
    const Quantization& q = *config.quantization;
    const auto grouping = q.desc_act ? quant::Grouping::by_column : quant::Grouping::in_order;
    return quant::Format{q.bits, q.group_size, grouping};
  }

  nn::VocabParallelEmbedding embedding() const {
    const std::string name = "model.embed_tokens";
    const ShardRule rule = ShardRule::sharded(/*dim=*/0, layout.vocab);
    const std::vector<int64_t> shape{config.vocab_size, config.hidden_size};
    if (const auto quantized = format(name + ".weight")) {
      const auto table = parallel::make_quantized_parameter(name + ".weight", shape, rule, *quantized, group);
      return {table, layout.vocab, dtype};
    }
    return {name, config.hidden_size, layout.vocab, Init::normal(config.initializer_range), group, dtype};
  }

  ColumnParallelLinear column(const std::string& name, bool has_bias, const ShardRule& rule) const {
    int64_t out_features = 0;
    for (const base::Segment& segment : rule.segments) out_features += segment.size();
    LinearOptions options(config.hidden_size, out_features);
    options.has_bias = has_bias;
    options.init = Init::normal(config.initializer_range);
    options.quantized = format(name + ".weight");
    return {name, options, rule, group, dtype};
  }

  /// Builds a projection into the residual stream. Its initialization is scaled by depth, so that the
  /// variance of the residual stream does not grow with depth (GPT-2 §2.3).
  RowParallelLinear row(const std::string& name, bool has_bias, const ShardRule& rule) const {
    LinearOptions options(rule.segments[0].size(), config.hidden_size);
    options.has_bias = has_bias;
    options.init = Init::normal(config.initializer_range / std::sqrt(2.0 * config.num_hidden_layers));
    options.quantized = format(name + ".weight");
    return {name, options, rule, group, dtype};
  }

  nn::Norm norm(const std::string& name) const {
    if (config.norm == Norm::layer)
      return nn::LayerNorm(name, config.hidden_size, config.norm_eps, group, dtype);
    return nn::RMSNorm(name, config.hidden_size, config.norm_eps, group, dtype);
  }

  nn::Mlp mlp(const std::string& name) const {
    RowParallelLinear down =
        row(name + "down_proj", config.mlp_bias, ShardRule::sharded(/*dim=*/1, layout.ffn));
    if (config.is_gated()) {
      const ShardRule gate_up{/*dim=*/0, {{layout.ffn}, {layout.ffn}}};
      return nn::GatedMlp(column(name + "gate_up_proj", config.mlp_bias, gate_up), std::move(down));
    }
    return nn::GeluMlp(column(name + "up_proj", config.mlp_bias, ShardRule::sharded(/*dim=*/0, layout.ffn)),
                       std::move(down),
                       config.activation == Activation::gelu ? kernels::Gelu::erf : kernels::Gelu::tanh);
  }

  nn::CausalSelfAttention attention(const std::string& name, int64_t layer) const {
    nn::SelfAttentionOptions options{.window = config.window_of(layer), .layer = layer};
    if (config.qk_norm) options.norm = nn::QkNorm::make(name, config.head_dim, config.norm_eps, group, dtype);
    return {nn::HeadLayout::of(layout.heads, layout.kv_heads, config.head_dim, group.rank()), rotary,
            options};
  }
};

BlockLayers make_block(const LayerFactory& factory, int64_t layer) {
  const auto& [config, layout, group, dtype, rotary] = factory;
  const std::string name = "model.layers." + std::to_string(layer) + ".", attention = name + "self_attn";
  const int64_t d = config.head_dim;
  const ShardRule qkv{/*dim=*/0, {{layout.heads, d}, {layout.kv_heads, d}, {layout.kv_heads, d}}};
  return {layer,
          factory.norm(name + "input_layernorm"),
          factory.column(attention + ".qkv_proj", config.qkv_bias, qkv),
          factory.attention(attention, layer),
          factory.row(attention + ".o_proj", config.attention_out_bias,
                      ShardRule::sharded(/*dim=*/1, layout.heads, d)),
          factory.norm(name + "post_attention_layernorm"),
          factory.mlp(name + "mlp.")};
}

std::vector<BlockLayers> make_blocks(const LayerFactory& factory) {
  std::vector<BlockLayers> blocks;
  for (int64_t layer = 0; layer < factory.config.num_hidden_layers; ++layer)
    blocks.push_back(make_block(factory, layer));
  return blocks;
}

/// A tied lm_head uses the embedding's parameter, so both gradients accumulate in one main_grad.
ColumnParallelLinear make_head(const LayerFactory& factory, const nn::VocabParallelEmbedding& embedding) {
  if (factory.config.tie_word_embeddings) return ColumnParallelLinear::tied_to(embedding.weight());
  return factory.column("lm_head", /*has_bias=*/false, ShardRule::sharded(/*dim=*/0, factory.layout.vocab));
}

std::optional<nn::LearnedPositions> make_positions(const LayerFactory& factory) {
  const Config& config = factory.config;
  if (config.positions != Positions::learned) return std::nullopt;
  return nn::LearnedPositions("model.embed_positions", config.max_position_embeddings, config.hidden_size,
                              Init::normal(config.initializer_range), factory.group, factory.dtype);
}

}  // namespace

DecoderWeights::DecoderWeights(const Config& config, const comm::Group& group, at::ScalarType dtype)
    : config_(config),
      group_(group),
      dtype_(dtype),
      layout_(make_layout(config, group.size())),
      embedding_(LayerFactory{config_, layout_, group_, dtype, nullptr}.embedding()),
      positions_(make_positions({config_, layout_, group_, dtype, nullptr})),
      blocks_(make_blocks(
          {config_, layout_, group_, dtype, std::make_shared<nn::Rotary>(inverse_frequencies(config))})),
      norm_(LayerFactory{config_, layout_, group_, dtype, nullptr}.norm("model.norm")),
      head_(make_head({config_, layout_, group_, dtype, nullptr}, embedding_)) {
  embedding_.append_parameters(used_parameters_);
  if (positions_) positions_->append_parameters(used_parameters_);
  for (const BlockLayers& block : blocks_) block.append_parameters(used_parameters_);
  norm_.append_parameters(used_parameters_);
  if (!config.tie_word_embeddings) head_.append_parameters(used_parameters_);
}

void DecoderWeights::initialize_(uint64_t seed) {
  const auto key = kernels::RandomKey::of(seed);
  for (const nn::UsedParameter& used : used_parameters_) parallel::initialize_(*used.parameter, key, group_);
}

namespace {

/// Checks that every rank runs the same tokens with the same random key.
void verify_inputs(const at::Tensor& ids, const nn::Step& step) {
  if (step.verify == parallel::Verify::off) return;
  parallel::verify_equal(ids, "the token ids", step);
  const auto key = static_cast<int64_t>(step.key.value);
  parallel::verify_equal(at::full({1}, key, at::kLong), "the random key", step);
}

}  // namespace

/// Returns the residual stream after the last block, before the final norm.
template <nn::ResidualStream Stream>
nn::DeferredReduction<Stream> Decoder<Stream>::hidden(const at::Tensor& ids, const nn::Step& step) const {
  constexpr bool kIsInvariant = std::is_same_v<Stream, nn::Invariant>;
  const auto& w = weights_;
  nn::check_step(step, ids.size(-1));
  verify_inputs(ids, step);
  TORCH_CHECK_VALUE(
      kIsInvariant || !step.split_batch,
      "step: the split-batch schedule needs TP without sequence parallelism; got a sequence-sharded "
      "residual stream");
  auto embedded = w.embedding_.template to<Stream>(ids, step);
  if (w.positions_) embedded = (*w.positions_)(embedded, step);
  embedded = nn::dropout(embedded, step, {/*layer=*/-1, nn::DropoutSite::embedding});
  embedded = nn::observed(&observer_, {nn::Stage::embedding}, std::move(embedded));
  if constexpr (kIsInvariant) {
    if (step.split_batch && at::GradMode::is_enabled()) {
      nn::SplitBatch halves(embedded, step);
      for (const BlockLayers& block : w.blocks_) halves.apply(block);
      return std::move(halves).concatenated();
    }
  }
  nn::DeferredReduction<Stream> x(std::move(embedded));
  for (const BlockLayers& block : w.blocks_) x = nn::run_block(block, std::move(x), step, &observer_);
  return x;
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::logits(const at::Tensor& ids,
                                                              const nn::Step& step) const {
  const auto& w = weights_;
  auto x = hidden(ids, step);
  const auto normed = nn::observed(&observer_, {nn::Stage::norm}, w.norm_(x, step));
  return nn::observed(&observer_, {nn::Stage::logits}, w.head_(normed, step));
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::next_logits(
    const at::Tensor& ids, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  const auto& w = weights_;
  auto x = hidden(ids, step);
  const auto chosen = [&](const nn::Placed<Stream>& all) {
    return nn::Placed<Stream>(all.local().index_select(0, rows));
  };
  // Selects rows before the norm if there are fewer; otherwise the norm performs the last reduction.
  const bool takes_all = rows.size(0) >= x.value->local().size(0);
  return w.head_(takes_all ? chosen(w.norm_(x, step)) : w.norm_(chosen(x.reduced(step)), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Invariant> Decoder<Stream>::loss(const at::Tensor& ids, const at::Tensor& labels,
                                                const nn::LossOptions& options, const nn::Step& step) const {
  return nn::cross_entropy(logits(ids, step), labels, weights_.layout_.vocab, options, step);
}

template class Decoder<nn::Invariant>;
template class Decoder<nn::Sharded<nn::kSequence>>;

}  // namespace shardwise::model

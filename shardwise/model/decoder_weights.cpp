// Builds the layers of a decoder and allocates their weights.
#include "shardwise/model/decoder_weights.h"

#include <algorithm>

#include "shardwise/parallel/weight_product.h"

namespace shardwise::model {

using nn::BlockLayers;
using nn::ColumnParallelLinear;
using nn::LinearOptions;
using nn::RowParallelLinear;

namespace {

/// Builds the layers of `weights`, whose config, layout and table exist, with the sizes in the table.
struct LayerFactory {
  const DecoderWeights& weights;
  std::shared_ptr<nn::Rotary> rotary = nullptr;

  const config::Config& config() const { return weights.config(); }
  const config::Layout& layout() const { return weights.layout(); }
  const comm::Group& group() const { return weights.group(); }
  const config::ParameterInfo& weight(const std::string& layer) const {
    return weights.table().at(layer + ".weight");
  }

  /// Returns nullopt for a weight in a tensor.
  std::optional<quant::Format> packed(const config::ParameterInfo& weight) const {
    if (weight.format == config::StorageFormat::dense) return packed_dense(weight);
    const config::Quantization q = config().quantization->of(weight.name);
    const auto grouping = q.desc_act ? quant::Grouping::by_column : quant::Grouping::in_order;
    return quant::Format{q.bits, q.group_size, grouping, /*has_zero_points=*/!q.is_symmetric,
                         q.int8_activations};
  }

  std::optional<quant::Format> packed_dense(const config::ParameterInfo& weight) const {
    if (weights.use() != WeightUse::inference || !group().device().is_cpu()) return std::nullopt;
    const std::vector<int64_t> local = weight.rule.local_shape(weight.shape, group().rank());
    return quant::inference_format(weights.dtype(), local[0], local[1]);
  }

  nn::VocabParallelEmbedding embedding() const {
    const std::string name = "model.embed_tokens";
    const config::ParameterInfo& table = weight(name);
    const base::Split& vocab = layout().vocab;
    if (const auto format = packed(table)) {
      return {
          parallel::make_packed_parameter(table.name, table.shape, table.rule, table.init, *format, group()),
          vocab, weights.dtype()};
    }
    return {name, config().hidden_size, vocab, table.init, group(), weights.dtype()};
  }

  /// Builds a ColumnParallelLinear or a RowParallelLinear.
  template <class Linear>
  Linear linear(const std::string& name) const {
    const config::ParameterInfo& parameter = weight(name);
    LinearOptions options(/*in=*/parameter.shape[1], /*out=*/parameter.shape[0]);
    options.has_bias = weights.table().contains(name + ".bias");
    options.init = parameter.init;
    options.packed = packed(parameter);
    return {name, options, parameter.rule, group(), weights.dtype()};
  }
  ColumnParallelLinear column(const std::string& name) const { return linear<ColumnParallelLinear>(name); }
  RowParallelLinear row(const std::string& name) const { return linear<RowParallelLinear>(name); }

  nn::Norm norm(const std::string& name) const {
    const int64_t h = config().hidden_size;
    const double eps = config().norm_eps;
    if (config().norm == config::Norm::layer) return nn::LayerNorm(name, h, eps, group(), weights.dtype());
    return nn::RMSNorm(name, h, eps, group(), weights.dtype());
  }

  nn::Mlp mlp(const std::string& name) const {
    RowParallelLinear down = row(name + "down_proj");
    if (config().is_gated()) return nn::GatedMlp(column(name + "gate_up_proj"), std::move(down));
    return nn::GeluMlp(
        column(name + "up_proj"), std::move(down),
        config().activation == config::Activation::gelu ? kernels::Gelu::erf : kernels::Gelu::tanh);
  }

  nn::CausalSelfAttention attention(const std::string& name, int64_t layer) const {
    const config::Config& c = config();
    nn::SelfAttentionOptions options{.window = c.window_of(layer), .layer = layer};
    if (c.qk_norm) options.norm = nn::QkNorm::make(name, c.head_dim, c.norm_eps, group(), weights.dtype());
    return {nn::HeadLayout::of(layout().heads, layout().kv_heads, c.head_dim, group().rank()), rotary,
            options};
  }
};

BlockLayers make_block(const LayerFactory& factory, int64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer) + ".", attention = name + "self_attn";
  return {layer,
          factory.norm(name + "input_layernorm"),
          factory.column(attention + ".qkv_proj"),
          factory.attention(attention, layer),
          factory.row(attention + ".o_proj"),
          factory.norm(name + "post_attention_layernorm"),
          factory.mlp(name + "mlp.")};
}

/// Where a layer's weights are allocated.
enum class Allocated { here, elsewhere };

Allocated allocated(const DecoderWeights& weights, bool is_held) {
  return is_held && weights.use() != WeightUse::replicated_training ? Allocated::here : Allocated::elsewhere;
}

bool has_block(const DecoderWeights& weights, int64_t layer) {
  return std::ranges::any_of(weights.stage(),
                             [&](const base::Range& run) { return run.begin <= layer && layer < run.end; });
}

/// Whether the rank is of the last stage of several, with a head that is tied to the first one's embedding.
bool is_tied_copy(const DecoderWeights& weights) {
  return weights.config().tie_word_embeddings && weights.has_head() && !weights.has_embedding();
}

/// Returns `layer`; without the values of its weights, as soon as it is made, unless they are allocated here.
template <class Layer>
Layer without_unused_values(Layer layer, Allocated allocated) {
  if (allocated == Allocated::here) return layer;
  nn::UsedParameters parameters;
  layer.append_parameters(parameters);
  for (const nn::UsedParameter& used : parameters) parallel::free_value_(*used.parameter);
  return layer;
}

std::vector<BlockLayers> make_blocks(const LayerFactory& factory) {
  std::vector<BlockLayers> blocks;
  for (int64_t layer = 0; layer < factory.config().num_hidden_layers; ++layer)
    blocks.push_back(without_unused_values(make_block(factory, layer),
                                           allocated(factory.weights, has_block(factory.weights, layer))));
  return blocks;
}

nn::VocabParallelEmbedding make_embedding(const LayerFactory& factory) {
  const DecoderWeights& weights = factory.weights;
  return without_unused_values(factory.embedding(), is_tied_copy(weights)
                                                        ? Allocated::here
                                                        : allocated(weights, weights.has_embedding()));
}

/// A tied lm_head uses the embedding's parameter, so both gradients accumulate in one main_grad.
ColumnParallelLinear make_head(const LayerFactory& factory, const nn::VocabParallelEmbedding& embedding) {
  if (factory.config().tie_word_embeddings) return ColumnParallelLinear::tied_to(embedding.weight());
  return without_unused_values(factory.column("lm_head"),
                               allocated(factory.weights, factory.weights.has_head()));
}

std::optional<nn::LearnedPositions> make_positions(const LayerFactory& factory) {
  if (factory.config().positions != config::Positions::learned) return std::nullopt;
  const std::string name = "model.embed_positions";
  const config::ParameterInfo& table = factory.weight(name);
  nn::LearnedPositions positions(name, table.shape[0], table.shape[1], table.init, factory.group(),
                                 factory.weights.dtype());
  return without_unused_values(std::move(positions),
                               allocated(factory.weights, factory.weights.has_embedding()));
}

}  // namespace

void check_weight_device(const std::string& where, const config::Config& config, const std::string& device) {
  TORCH_CHECK_VALUE(!config.quantization || !config.quantization->int8_activations || device == "cpu", where,
                    ": activations must be rounded to int8 on the CPU; got ", device,
                    "; use --device cpu [SW0848]");
}

namespace {

const config::Config& checked(const config::Config& config, const comm::Group& group) {
  check_weight_device("DecoderWeights", config, group.device().str());
  return config;
}

}  // namespace

DecoderWeights::DecoderWeights(const config::Config& config, const comm::Group& group, at::ScalarType dtype,
                               WeightUse use, std::vector<base::Range> stage)
    : config_(checked(config, group)),
      group_(group),
      dtype_(dtype),
      use_(use),
      stage_(stage.empty() ? std::vector{base::Range{0, config.num_hidden_layers}} : std::move(stage)),
      layout_(config::make_layout(config, group.size())),
      table_(config, layout_),
      embedding_(make_embedding({*this})),
      positions_(make_positions({*this})),
      blocks_(make_blocks({*this, std::make_shared<nn::Rotary>(config::inverse_frequencies(config))})),
      norm_(without_unused_values(LayerFactory{*this}.norm("model.norm"), allocated(*this, has_head()))),
      head_(make_head({*this}, embedding_)) {
  const auto append = [this](const auto& layer, bool is_used) {
    layer.append_parameters(all_parameters_);
    if (is_used) layer.append_parameters(used_parameters_);
  };
  append(embedding_, has_embedding());
  if (positions_) append(*positions_, has_embedding());
  for (const BlockLayers& block : blocks_) append(block, has_block(*this, block.layer));
  append(norm_, has_head());
  if (!config.tie_word_embeddings) append(head_, has_head());
}

parallel::ParameterPtr DecoderWeights::tied_copy() const {
  return is_tied_copy(*this) ? embedding_.weight() : nullptr;
}

nn::UsedParameters DecoderWeights::held_parameters() const {
  nn::UsedParameters held = used_parameters_;
  if (is_tied_copy(*this)) embedding_.append_parameters(held);
  return held;
}

std::span<const BlockLayers> DecoderWeights::blocks(size_t chunk) const {
  const base::Range& run = stage_.at(chunk);
  return std::span(blocks_).subspan(size_t(run.begin), size_t(run.size()));
}

template <nn::ResidualStream Stream>
parallel::ParameterParts DecoderWeights::parts() const {
  std::vector<nn::UsedParameters> used(1);
  embedding_.append_parameters(used[0]);
  if (positions_) positions_->append_parameters(used[0]);
  for (const BlockLayers& block : blocks_) block.append_parameters(used.emplace_back());
  norm_.append_parameters(used.emplace_back());
  if (!config_.tie_word_embeddings) head_.append_parameters(used.back());
  parallel::ParameterParts parts{.parts = {}, .is_first_tied = config_.tie_word_embeddings};
  for (const nn::UsedParameters& parameters : used) parts.parts.push_back(nn::specs_of<Stream>(parameters));
  return parts;
}

template parallel::ParameterParts DecoderWeights::parts<nn::Invariant>() const;
template parallel::ParameterParts DecoderWeights::parts<nn::Sharded<nn::kSequence>>() const;

void DecoderWeights::initialize_(uint64_t seed, const OnParameter& initialized) {
  const auto key = kernels::RandomKey::of(seed);
  for (const nn::UsedParameter& used : held_parameters()) {
    parallel::initialize_(*used.parameter, key, group_);
    if (initialized) initialized(*used.parameter);
  }
}

int64_t DecoderWeights::rows_with_equal_bits() const {
  nn::UsedParameters parameters;
  for (const BlockLayers& block : blocks_) block.append_parameters(parameters);
  int64_t rows = parallel::rows_with_equal_bits(dtype_, *head_.weight());
  for (const auto& [parameter, use] : parameters) {
    const bool is_multiplied = parameter->panels || parameter->value.dim() == 2;
    if (is_multiplied) rows = std::min(rows, parallel::rows_with_equal_bits(dtype_, *parameter));
  }
  return rows;
}

}  // namespace shardwise::model

// Builds a decoder from embedding, blocks, norm and lm_head. Parallelism appears only as the type of the
// residual stream.
#include "shardwise/model/decoder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "shardwise/kernels/queued_copy.h"
#include "shardwise/nn/split_batch.h"
#include "shardwise/parallel/verify.h"
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

namespace {

/// Checks that every rank runs the same tokens with the same random key.
void verify_inputs(const at::Tensor& ids, const nn::Step& step) {
  if (step.verify == parallel::Verify::off) return;
  parallel::verify_equal(ids, "the token ids", step);
  const auto key = static_cast<int64_t>(step.key.value);
  parallel::verify_equal(at::full({1}, key, at::kLong), "the random key", step);
}

/// The number of a block's part: the first part is before the blocks.
int64_t part_of(const BlockLayers& block) {
  return block.layer + 1;
}

/// Reports that a part computes next.
void report_begin(const nn::Step& step, int64_t part) {
  if (step.part_begins) (*step.part_begins)(part);
}

/// Makes backward report that the gradients of part `part`, whose input is `x`, are complete. Autograd
/// computes the gradient of `x` last of all in the part, because the nodes that it runs were recorded last.
template <nn::ResidualStream Stream>
void report_when_done(const nn::DeferredReduction<Stream>& x, const nn::Step& step, int64_t part) {
  if (!step.part_gradients_done || !x.value || !x.value->local().requires_grad()) return;
  x.value->local().register_hook(
      [done = step.part_gradients_done, part](const at::Tensor&) { (*done)(part); });
}

}  // namespace

template <nn::ResidualStream Stream>
nn::Placed<Stream> Decoder<Stream>::embedded(const at::Tensor& ids, const nn::Step& step) const {
  const auto& w = weights_;
  nn::check_step(step, ids.size(-1));
  if (step.split_batch)
    nn::check_split_batch(step, ids.size(-1),
                          /*is_sequence_parallel=*/!std::is_same_v<Stream, nn::Invariant>);
  verify_inputs(ids, step);
  report_begin(step, /*part=*/0);
  auto embedded = w.embedding_.template to<Stream>(ids, step);
  if (w.positions_) embedded = (*w.positions_)(embedded, step);
  embedded = nn::dropout(embedded, step, {/*layer=*/-1, nn::DropoutSite::Site::embedding});
  return nn::observed(&observer_, {nn::Stage::Kind::embedding}, std::move(embedded));
}

template <nn::ResidualStream Stream>
nn::DeferredReduction<Stream> Decoder<Stream>::run_blocks(nn::Placed<Stream> stream, size_t chunk,
                                                          const nn::Step& step) const {
  const std::span<const BlockLayers> blocks = weights_.blocks(chunk);
  if constexpr (std::is_same_v<Stream, nn::Invariant>) {
    if (step.split_batch && at::GradMode::is_enabled()) {
      nn::SplitBatch halves(std::move(stream), step);
      for (const BlockLayers& block : blocks) halves.apply(block);
      return std::move(halves).concatenated();
    }
  }
  nn::DeferredReduction<Stream> x(std::move(stream));
  for (const BlockLayers& block : blocks) {
    report_when_done(x, step, part_of(block));
    report_begin(step, part_of(block));
    x = nn::run_block(block, std::move(x), step, &observer_);
  }
  report_when_done(x, step, weights_.stage()[chunk].end + 1);
  return x;
}

template <nn::ResidualStream Stream>
nn::Placed<Stream> Decoder<Stream>::through_blocks(nn::Placed<Stream> x, size_t chunk,
                                                   const nn::Step& step) const {
  return run_blocks(std::move(x), chunk, step).reduced(step);
}

/// Returns the residual stream after the last block, before the final norm.
template <nn::ResidualStream Stream>
nn::DeferredReduction<Stream> Decoder<Stream>::hidden(const at::Tensor& ids, const nn::Step& step) const {
  return run_blocks(embedded(ids, step), /*chunk=*/0, step);
}

template <nn::ResidualStream Stream>
nn::Placed<Stream> Decoder<Stream>::normed(nn::DeferredReduction<Stream> x, const nn::Step& step) const {
  report_begin(step, /*part=*/weights_.config().num_hidden_layers + 1);
  return nn::observed(&observer_, {nn::Stage::Kind::norm}, weights_.norm_(x, step));
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::head_of(const nn::Placed<Stream>& normed,
                                                               const nn::Step& step) const {
  return nn::observed(&observer_, {nn::Stage::Kind::logits}, weights_.head_(normed, step));
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::logits(const at::Tensor& ids,
                                                              const nn::Step& step) const {
  return head_of(normed(hidden(ids, step), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::logits_of(nn::Placed<Stream> x,
                                                                 const nn::Step& step) const {
  return head_of(normed(nn::DeferredReduction<Stream>(std::move(x)), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::head_of_rows(
    nn::DeferredReduction<Stream> x, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  const auto& w = weights_;
  const auto chosen = [&](const nn::Placed<Stream>& all) {
    return nn::Placed<Stream>(all.local().index_select(0, kernels::queued_copy(rows, all.local().device())));
  };
  // Selects rows before the norm if there are fewer; otherwise the norm performs the last reduction.
  const bool takes_all = rows.size(0) >= x.value->local().size(0);
  return w.head_(takes_all ? chosen(w.norm_(x, step)) : w.norm_(chosen(x.reduced(step)), step), step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::next_logits(
    const at::Tensor& ids, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  return head_of_rows(hidden(ids, step), rows, step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Sharded<nn::kFeature>> Decoder<Stream>::next_logits_of(
    nn::Placed<Stream> x, const at::Tensor& rows,
    const nn::Step& step) const requires std::is_same_v<Stream, nn::Invariant> {
  return head_of_rows(nn::DeferredReduction<Stream>(std::move(x)), rows, step);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Invariant> Decoder<Stream>::loss(const at::Tensor& ids, const at::Tensor& labels,
                                                const nn::LossOptions& options, const nn::Step& step) const {
  return nn::linear_cross_entropy(normed(hidden(ids, step), step), weights_.head_, labels, options, step,
                                  &observer_);
}

template <nn::ResidualStream Stream>
nn::Placed<nn::Invariant> Decoder<Stream>::loss_of(nn::Placed<Stream> x, const at::Tensor& labels,
                                                   const nn::LossOptions& options,
                                                   const nn::Step& step) const {
  return nn::linear_cross_entropy(normed(nn::DeferredReduction<Stream>(std::move(x)), step), weights_.head_,
                                  labels, options, step, &observer_);
}

template class Decoder<nn::Invariant>;
template class Decoder<nn::Sharded<nn::kSequence>>;

}  // namespace shardwise::model

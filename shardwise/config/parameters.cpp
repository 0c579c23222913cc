#include "shardwise/config/parameters.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace shardwise::config {

using base::Init;
using base::ParameterUse;
using base::ShardRule;

namespace {

int64_t size_of(const ShardRule& rule) {
  int64_t size = 0;
  for (const base::Segment& segment : rule.segments) size += segment.size();
  return size;
}

class TableBuilder {
 public:
  TableBuilder(const Config& config, const Layout& layout) : config_(config), layout_(layout) {}

  std::vector<ParameterInfo> build() {
    const Quantization q = config_.quantization.value_or(Quantization{});
    const ShardRule vocab = ShardRule::sharded(/*dim=*/0, layout_.vocab);
    column("model.embed_tokens", vocab, /*has_bias=*/false, format_if(q.embeddings));
    if (config_.positions == Positions::learned) positions("model.embed_positions");
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) block(i);
    norm("model.norm", config_.hidden_size, config_.norm, ParameterUse::on_residual);
    if (!config_.tie_word_embeddings) column("lm_head", vocab, /*has_bias=*/false, format_if(q.lm_head));
    return std::move(parameters_);
  }

 private:
  StorageFormat format_if(bool is_quantized) const {
    return is_quantized ? quantized_format(config_) : StorageFormat::dense;
  }

  void add(const std::string& name, std::vector<int64_t> shape, const ShardRule& rule, ParameterUse use,
           const Init& init, StorageFormat format = StorageFormat::dense) {
    parameters_.push_back({name, std::move(shape), rule, use, init, format, block_});
  }

  void norm(const std::string& name, int64_t size, Norm kind, ParameterUse use) {
    add(name + ".weight", {size}, ShardRule::replicated(), use, Init::constant(1));
    if (kind == Norm::layer) add(name + ".bias", {size}, ShardRule::replicated(), use, Init::constant(0));
  }

  void positions(const std::string& name) {
    add(name + ".weight", {config_.max_position_embeddings, config_.hidden_size}, ShardRule::replicated(),
        ParameterUse::on_residual, Init::normal(config_.initializer_range));
  }

  /// Adds a weight [out, h] whose rows are sharded by `rule`, and its bias with it.
  void column(const std::string& name, const ShardRule& rule, bool has_bias, StorageFormat format) {
    const int64_t out = size_of(rule);
    add(name + ".weight", {out, config_.hidden_size}, rule, ParameterUse::sharded,
        Init::normal(config_.initializer_range), format);
    if (has_bias) add(name + ".bias", {out}, rule, ParameterUse::sharded, Init::constant(0));
  }

  /// Adds a projection [h, in] into the residual stream whose columns are sharded by `rule`. Its
  /// initialization is scaled by depth, so that the variance of the residual stream does not grow with depth
  /// (GPT-2 §2.3).
  void row(const std::string& name, const ShardRule& rule, bool has_bias) {
    const int64_t h = config_.hidden_size;
    const auto depth = static_cast<double>(config_.num_hidden_layers);
    add(name + ".weight", {h, size_of(rule)}, rule, ParameterUse::sharded,
        Init::normal(config_.initializer_range / std::sqrt(2.0 * depth)), quantized_format(config_));
    if (has_bias)
      add(name + ".bias", {h}, ShardRule::replicated(), ParameterUse::on_residual, Init::constant(0));
  }

  void attention(const std::string& name) {
    const Config& c = config_;
    const auto& [heads, kv_heads, ffn, vocab] = layout_;
    const ShardRule qkv{/*dim=*/0, {{heads, c.head_dim}, {kv_heads, c.head_dim}, {kv_heads, c.head_dim}}};
    column(name + "qkv_proj", qkv, c.qkv_bias, quantized_format(c));
    if (c.qk_norm) {
      norm(name + "q_norm", c.head_dim, Norm::rms, ParameterUse::per_head);
      norm(name + "k_norm", c.head_dim, Norm::rms, ParameterUse::per_head);
    }
    row(name + "o_proj", ShardRule::sharded(/*dim=*/1, heads, c.head_dim), c.attention_out_bias);
  }

  void mlp(const std::string& name) {
    const base::Split& ffn = layout_.ffn;
    const ShardRule gate_up{/*dim=*/0, {{ffn}, {ffn}}}, up = ShardRule::sharded(/*dim=*/0, ffn);
    const bool is_gated = config_.is_gated();
    column(name + (is_gated ? "gate_up_proj" : "up_proj"), is_gated ? gate_up : up, config_.mlp_bias,
           quantized_format(config_));
    row(name + "down_proj", ShardRule::sharded(/*dim=*/1, ffn), config_.mlp_bias);
  }

  void block(int64_t number) {
    block_ = number;
    const std::string name = "model.layers." + std::to_string(number) + ".";
    norm(name + "input_layernorm", config_.hidden_size, config_.norm, ParameterUse::on_residual);
    attention(name + "self_attn.");
    norm(name + "post_attention_layernorm", config_.hidden_size, config_.norm, ParameterUse::on_residual);
    mlp(name + "mlp.");
    block_ = std::nullopt;
  }

  const Config& config_;
  const Layout& layout_;
  std::optional<int64_t> block_;
  std::vector<ParameterInfo> parameters_;
};

}  // namespace

StorageFormat quantized_format(const Config& config) {
  if (!config.quantization) return StorageFormat::dense;
  return config.quantization->is_packed() ? StorageFormat::packed : StorageFormat::quantized;
}

int64_t ParameterInfo::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

ParameterTable::ParameterTable(const Config& config, const Layout& layout)
    : parameters_(TableBuilder(config, layout).build()) {
  index_.reserve(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) index_.emplace(parameters_[i].name, i);
}

ParameterTable::ParameterTable(const Config& config)
    : ParameterTable(config, make_layout(config, /*tp=*/1)) {}

int64_t parameter_count(const Config& config) {
  int64_t count = 0;
  for (const ParameterInfo& parameter : ParameterTable(config)) count += parameter.numel();
  return count;
}

std::string module_name(const std::string& parameter) {
  const std::string module = parameter.substr(0, parameter.rfind('.'));
  return module.substr(module.rfind('.') + 1);
}

}  // namespace shardwise::config

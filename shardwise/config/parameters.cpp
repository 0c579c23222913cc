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

  /// Queries, keys and values come from short vectors, which every rank computes; only what is made of them
  /// is split by heads.
  void latent_attention(const std::string& name, const LatentAttention& latent) {
    const Config& c = config_;
    const base::Split& heads = layout_.heads;
    const Init init = Init::normal(c.initializer_range);
    const int64_t keys_and_values = latent.qk_nope_head_dim + latent.v_head_dim;
    const auto down = [&](const std::string& module, int64_t features) {
      add(name + module + ".weight", {features, c.hidden_size}, ShardRule::replicated(),
          ParameterUse::on_residual, init, quantized_format(c));
    };
    const auto up = [&](const std::string& module, int64_t of_head, int64_t features) {
      add(name + module + ".weight", {c.num_attention_heads * of_head, features},
          ShardRule::sharded(/*dim=*/0, heads, of_head), ParameterUse::sharded, init, quantized_format(c));
    };
    down("q_a_proj", latent.q_lora_rank);
    norm(name + "q_a_layernorm", latent.q_lora_rank, Norm::rms, ParameterUse::on_residual);
    up("q_b_proj", c.head_dim, latent.q_lora_rank);
    down("kv_a_proj_with_mqa", latent.cached_features());
    norm(name + "kv_a_layernorm", latent.kv_lora_rank, Norm::rms, ParameterUse::on_residual);
    up("kv_b_proj", keys_and_values, latent.kv_lora_rank);
    row(name + "o_proj", ShardRule::sharded(/*dim=*/1, heads, latent.v_head_dim), /*has_bias=*/false);
  }

  void attention(const std::string& name) {
    const Config& c = config_;
    if (c.latent_attention) return latent_attention(name, *c.latent_attention);
    const auto& [heads, kv_heads, ffn, vocab] = layout_;
    const ShardRule qkv{/*dim=*/0, {{heads, c.head_dim}, {kv_heads, c.head_dim}, {kv_heads, c.head_dim}}};
    column(name + "qkv_proj", qkv, c.qkv_bias, quantized_format(c));
    if (c.qk_norm) {
      norm(name + "q_norm", c.head_dim, Norm::rms, ParameterUse::per_head);
      norm(name + "k_norm", c.head_dim, Norm::rms, ParameterUse::per_head);
    }
    row(name + "o_proj", ShardRule::sharded(/*dim=*/1, heads, c.head_dim), c.attention_out_bias);
  }

  /// `ffn`: the features inside.
  void mlp(const std::string& name, const base::Split& ffn) {
    const ShardRule gate_up{/*dim=*/0, {{ffn}, {ffn}}}, up = ShardRule::sharded(/*dim=*/0, ffn);
    const bool is_gated = config_.is_gated();
    column(name + (is_gated ? "gate_up_proj" : "up_proj"), is_gated ? gate_up : up, config_.mlp_bias,
           quantized_format(config_));
    row(name + "down_proj", ShardRule::sharded(/*dim=*/1, ffn), config_.mlp_bias);
  }

  /// Router, which is never quantized, and experts, which tensor parallelism does not split.
  void experts(const std::string& name, const Experts& experts) {
    const int64_t n = experts.count, f = experts.intermediate_size, h = config_.hidden_size;
    const Init init = Init::normal(config_.initializer_range);
    const auto whole = [&](const std::string& of, std::vector<int64_t> shape, StorageFormat format) {
      add(name + of, std::move(shape), ShardRule::replicated(), ParameterUse::on_residual, init, format);
    };
    whole("gate.weight", {n, h}, StorageFormat::dense);
    if (experts.has_score_bias) whole("gate.e_score_correction_bias", {n}, StorageFormat::dense);
    whole("experts.gate_up_proj", {n, 2 * f, h}, quantized_format(config_));
    whole("experts.down_proj", {n, h, f}, quantized_format(config_));
    if (experts.shared_size > 0)
      mlp(name + "shared_experts.", base::Split::even("shared ffn", experts.shared_size, ranks()));
  }
  int ranks() const { return layout_.vocab.ranks(); }

  void block(int64_t number) {
    block_ = number;
    const std::string name = "model.layers." + std::to_string(number) + ".";
    norm(name + "input_layernorm", config_.hidden_size, config_.norm, ParameterUse::on_residual);
    attention(name + "self_attn.");
    norm(name + "post_attention_layernorm", config_.hidden_size, config_.norm, ParameterUse::on_residual);
    if (config_.has_experts(number)) {
      experts(name + "mlp.", *config_.experts);
    } else {
      mlp(name + "mlp.", layout_.ffn);
    }
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

int64_t element_bytes(const Config& config) {
  if (config.dtype == "float64") return 8;
  return config.dtype == "float32" ? 4 : 2;
}

int64_t active_parameter_count(const Config& config) {
  if (!config.experts) return parameter_count(config);
  const Experts& e = *config.experts;
  const int64_t of_one = 3 * config.hidden_size * e.intermediate_size;
  return parameter_count(config) -
         (config.num_hidden_layers - e.first_dense_layers) * (e.count - e.per_token) * of_one;
}

std::string module_name(const std::string& parameter) {
  const std::string module = parameter.substr(0, parameter.rfind('.'));
  return module.substr(module.rfind('.') + 1);
}

}  // namespace shardwise::config

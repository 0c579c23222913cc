#include "shardwise/plan/required_gradients.h"

namespace shardwise::plan {
namespace {

/// The trained parameters.
class Trained {
 public:
  Trained(const config::ParameterTable& table, const std::set<std::string>& frozen)
      : table_(table), frozen_(frozen) {}

  /// True if the model has this parameter and trains it.
  bool has(const std::string& name) const { return table_.contains(name) && is_trained(table_.at(name)); }
  /// True if a parameter before `part` in the forward is trained: the input of `part` requires a gradient.
  bool has_before(const std::string& part) const {
    for (const config::ParameterInfo& parameter : table_) {
      if (parameter.name.starts_with(part)) return false;
      if (is_trained(parameter)) return true;
    }
    return false;
  }

  RequiredGradients layer(bool input, const std::string& name) const {
    const bool weight = is_trained(table_.at(name + ".weight"));
    return {input, weight, input || weight || has(name + ".bias")};
  }

 private:
  bool is_trained(const config::ParameterInfo& parameter) const { return !frozen_.contains(parameter.name); }

  const config::ParameterTable& table_;
  const std::set<std::string>& frozen_;
};

constexpr RequiredGradients kAll{true, true, true};

RequiredByBlock required_by_block(const config::Config& config, const Trained& trained, int64_t layer) {
  const std::string block = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = block + "self_attn.", mlp = block + "mlp.";
  RequiredByBlock w;
  w.norm1 = trained.layer(trained.has_before(block), block + "input_layernorm");
  w.qkv = trained.layer(w.norm1.any, attention + "qkv_proj");
  const bool qk_norm = trained.has(attention + "q_norm.weight") || trained.has(attention + "k_norm.weight");
  w.attention = {w.qkv.any, qk_norm, w.qkv.any || qk_norm};
  w.out = trained.layer(w.attention.any, attention + "o_proj");
  // The residual stream bypasses the layers, but its gradient also goes through them.
  w.norm2 = trained.layer(w.out.any, block + "post_attention_layernorm");
  const bool is_gated = config.is_gated();
  const RequiredGradients with_bias =
      trained.layer(w.norm2.any, mlp + (is_gated ? "gate_up_proj" : "up_proj"));
  const RequiredGradients without_bias = {with_bias.input, with_bias.weight,
                                          with_bias.input || with_bias.weight};
  w.mlp = is_gated ? with_bias : without_bias;
  w.activation = {w.mlp.any, false, with_bias.any};
  w.down = trained.layer(w.activation.any, mlp + "down_proj");
  return w;
}

RequiredByHead required_by_head(const config::Config& config, const Trained& trained) {
  const RequiredGradients norm = trained.layer(trained.has_before("model.norm."), "model.norm");
  return {norm, trained.layer(norm.any, config.tie_word_embeddings ? "model.embed_tokens" : "lm_head")};
}

}  // namespace

RequiredGradients all_of_embedding() {
  return {false, true, true};
}

RequiredByBlock all_of_block(const config::Config& config) {
  return {.norm1 = kAll,
          .qkv = kAll,
          .attention = {true, config.qk_norm, true},
          .out = kAll,
          .norm2 = kAll,
          .mlp = kAll,
          .activation = {true, false, true},
          .down = kAll};
}

RequiredByHead all_of_head() {
  return {kAll, kAll};
}

RequiredByModel required_by_model(const config::Config& config, const config::ParameterTable& table,
                                  const std::set<std::string>& frozen) {
  const Trained trained(table, frozen);
  RequiredByModel required;
  required.embedding = trained.layer(/*input=*/false, "model.embed_tokens");
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    required.blocks.push_back(required_by_block(config, trained, layer));
  required.head = required_by_head(config, trained);
  return required;
}

}  // namespace shardwise::plan

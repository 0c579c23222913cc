#include "shardwise/config/tensors.h"

#include <functional>
#include <numeric>
#include <utility>

#include "shardwise/config/family.h"

namespace shardwise::model {
namespace {

/// Builds the list of tensors.
class TensorList {
 public:
  explicit TensorList(const Config& config) : config_(config) {}

  void norm(const std::string& name, int64_t size, Norm kind) {
    list_.push_back({name + ".weight", {size}, {}});
    if (kind == Norm::layer) list_.push_back({name + ".bias", {size}, {}});
  }
  void residual_norm(const std::string& name) { norm(name, config_.hidden_size, config_.norm); }

  void linear(const std::string& name, const std::vector<int64_t>& outputs, int64_t in_features,
              bool has_bias) {
    const int64_t out_features = std::accumulate(outputs.begin(), outputs.end(), int64_t{0});
    const std::vector<int64_t> segments = outputs.size() > 1 ? outputs : std::vector<int64_t>();
    list_.push_back({name + ".weight", {out_features, in_features}, segments});
    if (has_bias) list_.push_back({name + ".bias", {out_features}, segments});
  }

  void layer(const std::string& name) {
    const Config& c = config_;
    const int64_t h = c.hidden_size, f = c.intermediate_size;
    const int64_t queries = c.num_attention_heads * c.head_dim, keys = c.num_key_value_heads * c.head_dim;
    residual_norm(name + "input_layernorm");
    linear(name + "self_attn.qkv_proj", {queries, keys, keys}, h, c.qkv_bias);
    if (c.qk_norm) {
      norm(name + "self_attn.q_norm", c.head_dim, Norm::rms);
      norm(name + "self_attn.k_norm", c.head_dim, Norm::rms);
    }
    linear(name + "self_attn.o_proj", {h}, queries, c.attention_out_bias);
    residual_norm(name + "post_attention_layernorm");
    if (c.is_gated()) {
      linear(name + "mlp.gate_up_proj", {f, f}, h, c.mlp_bias);
    } else {
      linear(name + "mlp.up_proj", {f}, h, c.mlp_bias);
    }
    linear(name + "mlp.down_proj", {h}, f, c.mlp_bias);
  }

  void table(const std::string& name, int64_t rows) {
    list_.push_back({name + ".weight", {rows, config_.hidden_size}, {}});
  }

  std::vector<FullTensor> release() { return std::move(list_); }

 private:
  const Config& config_;
  std::vector<FullTensor> list_;
};

/// Appends the tensors of a packed weight: one per part if the family stores it fused, else one per segment.
void append_packed(std::vector<FullTensor>& list, const FullTensor& parameter, const Config& config) {
  const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
  for (const PackedPart& part : packed_parts(*config.quantization)) {
    const StoredNames stored = stored_names(family_of(config.model_type), module + part.leaf);
    for (size_t i = 0; i < stored.names.size(); ++i) {
      const int64_t out_features = stored.names.size() == 1 ? parameter.shape[0] : parameter.segments.at(i);
      list.push_back({stored.names[i], part.shape(out_features, parameter.shape[1]), {}, part.element_type});
    }
  }
}

/// Appends one tensor if the family stores the parameter fused, else one per segment.
void append_stored(std::vector<FullTensor>& list, const FullTensor& parameter, const StoredNames& stored) {
  if (stored.names.size() == 1) {
    std::vector<int64_t> shape = parameter.shape;
    if (stored.is_transposed) std::swap(shape.at(0), shape.at(1));
    list.push_back({stored.names.front(), std::move(shape), {}});
    return;
  }
  for (size_t i = 0; i < stored.names.size(); ++i) {
    std::vector<int64_t> shape = parameter.shape;
    shape[0] = parameter.segments.at(i);
    list.push_back({stored.names[i], std::move(shape), {}});
  }
}

}  // namespace

int64_t FullTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<FullTensor> full_tensors(const Config& config) {
  TensorList tensors(config);
  tensors.table("model.embed_tokens", config.vocab_size);
  if (config.positions == Positions::learned) {
    tensors.table("model.embed_positions", config.max_position_embeddings);
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    tensors.layer("model.layers." + std::to_string(layer) + ".");
  }
  tensors.residual_norm("model.norm");
  if (!config.tie_word_embeddings) tensors.table("lm_head", config.vocab_size);
  return tensors.release();
}

std::vector<FullTensor> stored_full_tensors(const Config& config) {
  const Family& family = family_of(config.model_type);
  std::vector<FullTensor> list;
  for (const FullTensor& parameter : full_tensors(config)) {
    if (is_packed(config, parameter.name)) {
      append_packed(list, parameter, config);
    } else {
      append_stored(list, parameter, stored_names(family, parameter.name));
    }
  }
  return list;
}

int64_t parameter_count(const Config& config) {
  int64_t count = 0;
  for (const FullTensor& tensor : full_tensors(config)) count += tensor.numel();
  return count;
}

}  // namespace shardwise::model

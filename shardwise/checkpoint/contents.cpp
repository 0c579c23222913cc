#include "shardwise/checkpoint/contents.h"

#include "shardwise/checkpoint/dtype.h"

namespace shardwise::checkpoint {
namespace {

void append_state(Entries& entries, const parallel::Parameter& parameter, const char* what,
                  const at::Tensor& local) {
  for (model::StoredTensor& stored : model::stored_tensors(parameter)) {
    std::string name = stored.name + what;
    entries.push_back({std::move(name), std::move(stored), local});
  }
}

std::vector<io::TensorSpec> specs_of(const Entries& entries) {
  std::vector<io::TensorSpec> specs;
  for (const Entry& entry : entries) {
    specs.push_back({entry.name, file_dtype(entry.local.scalar_type(), entry.name), entry.stored.shape});
  }
  return specs;
}

/// A projection's weight, and its bias where it has one.
void append_linear(std::vector<Expected>& list, const std::string& name, int64_t out_features,
                   int64_t in_features, bool has_bias) {
  list.push_back({name + ".weight", {out_features, in_features}});
  if (has_bias) list.push_back({name + ".bias", {out_features}});
}

void append_layer(std::vector<Expected>& list, const model::Config& c, const std::string& layer) {
  const int64_t h = c.hidden_size, f = c.intermediate_size;
  const int64_t queries = c.num_attention_heads * c.head_dim, keys = c.num_key_value_heads * c.head_dim;
  list.push_back({layer + "input_layernorm.weight", {h}});
  append_linear(list, layer + "self_attn.q_proj", queries, h, c.attention_bias);
  append_linear(list, layer + "self_attn.k_proj", keys, h, c.attention_bias);
  append_linear(list, layer + "self_attn.v_proj", keys, h, c.attention_bias);
  append_linear(list, layer + "self_attn.o_proj", h, queries, c.attention_bias);
  list.push_back({layer + "post_attention_layernorm.weight", {h}});
  append_linear(list, layer + "mlp.gate_proj", f, h, c.mlp_bias);
  append_linear(list, layer + "mlp.up_proj", f, h, c.mlp_bias);
  append_linear(list, layer + "mlp.down_proj", h, f, c.mlp_bias);
}

}  // namespace

Entries weight_entries(const model::DecoderWeights& weights) {
  Entries entries;
  for (const nn::Role& role : weights.roles()) {
    append_state(entries, *role.parameter, /*what=*/"", role.parameter->value.detach());
  }
  return entries;
}

Entries state_entries(const std::vector<ParameterState>& parameters) {
  Entries entries;
  for (const auto& [parameter, master, exp_avg, exp_avg_sq] : parameters) {
    if (master.defined()) append_state(entries, *parameter, kMaster, master.detach());
    append_state(entries, *parameter, kExpAvg, exp_avg);
    append_state(entries, *parameter, kExpAvgSq, exp_avg_sq);
  }
  return entries;
}

io::Layout plan_weights(const Entries& entries) {
  return io::plan_file(specs_of(entries), {{"format", "pt"}});  // older transformers refuse a file without it
}

io::Layout plan_state(const Entries& entries) {
  std::vector<io::TensorSpec> specs = specs_of(entries);
  specs.push_back({kStep, io::Dtype::I64, {}});
  specs.push_back({kSequences, io::Dtype::I64, {}});
  return io::plan_file(specs);
}

std::vector<Expected> expected_weights(const model::Config& config) {
  std::vector<Expected> list = {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}}};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    append_layer(list, config, "model.layers." + std::to_string(layer) + ".");
  }
  list.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tie_word_embeddings) {
    list.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  }
  return list;
}

}  // namespace shardwise::checkpoint

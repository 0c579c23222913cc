#include "shardwise/doctor/formula_weights.h"

#include <ATen/ops/empty.h>

#include <set>

#include "shardwise/checkpoint/dtype.h"

namespace shardwise::doctor {

using at::Tensor;

namespace {

/// Returns the outputs [begin, begin + size) of a fused projection.
Affine outputs(const Affine& fused, int64_t begin, int64_t size) {
  const Tensor bias = fused.bias.defined() ? fused.bias.narrow(0, begin, size) : Tensor();
  return {fused.weight.narrow(0, begin, size), bias};
}

}  // namespace

StandardWeights::StandardWeights(const std::filesystem::path& directory, const model::Config& config)
    : files_(directory.string()), config_(config) {
  TORCH_INTERNAL_ASSERT(!config.quantization, "the formulas need dense weights");
}

Tensor StandardWeights::tensor(const std::string& name) const {
  const auto [file, info] = files_.find(name);
  const Tensor stored = at::empty(info->shape, checkpoint::tensor_dtype(info->dtype));
  file->read_tensor(*info, stored.mutable_data_ptr());
  return stored.to(at::kDouble);
}

Tensor StandardWeights::tensor_if_stored(const std::string& name) const {
  return has(name) ? tensor(name) : Tensor();
}

Affine StandardWeights::affine(const std::string& module) const {
  return {tensor(module + ".weight"), tensor_if_stored(module + ".bias")};
}

/// Reads GPT-2's linear layer, whose weight is stored as [in, out].
Affine StandardWeights::conv1d(const std::string& module) const {
  const Affine stored = affine(module);
  return {stored.weight.t(), stored.bias};
}

FormulaLayer StandardWeights::llama_layer(const std::string& layer) const {
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  return {.attention_norm = affine(layer + "input_layernorm"),
          .q = affine(attention + "q_proj"),
          .k = affine(attention + "k_proj"),
          .v = affine(attention + "v_proj"),
          .q_norm = {tensor_if_stored(attention + "q_norm.weight"), {}},
          .k_norm = {tensor_if_stored(attention + "k_norm.weight"), {}},
          .o = affine(attention + "o_proj"),
          .mlp_norm = affine(layer + "post_attention_layernorm"),
          .gate = affine(mlp + "gate_proj"),
          .up = affine(mlp + "up_proj"),
          .down = affine(mlp + "down_proj")};
}

/// Phi-3 fuses the rows of q|k|v and of gate|up.
FormulaLayer StandardWeights::phi3_layer(const std::string& layer) const {
  const int64_t queries = config_.num_attention_heads * config_.head_dim,
                keys = config_.num_key_value_heads * config_.head_dim, ffn = config_.intermediate_size;
  const Affine qkv = affine(layer + "self_attn.qkv_proj"), gate_up = affine(layer + "mlp.gate_up_proj");
  return {.attention_norm = affine(layer + "input_layernorm"),
          .q = outputs(qkv, 0, queries),
          .k = outputs(qkv, queries, keys),
          .v = outputs(qkv, queries + keys, keys),
          .q_norm = {},
          .k_norm = {},
          .o = affine(layer + "self_attn.o_proj"),
          .mlp_norm = affine(layer + "post_attention_layernorm"),
          .gate = outputs(gate_up, 0, ffn),
          .up = outputs(gate_up, ffn, ffn),
          .down = affine(layer + "mlp.down_proj")};
}

/// GPT-2 fuses the outputs of q|k|v, of equal size.
FormulaLayer StandardWeights::gpt2_layer(const std::string& layer) const {
  const Affine qkv = conv1d(layer + "attn.c_attn");
  const int64_t hidden = qkv.weight.size(0) / 3;
  return {.attention_norm = affine(layer + "ln_1"),
          .q = outputs(qkv, 0, hidden),
          .k = outputs(qkv, hidden, hidden),
          .v = outputs(qkv, 2 * hidden, hidden),
          .q_norm = {},
          .k_norm = {},
          .o = conv1d(layer + "attn.c_proj"),
          .mlp_norm = affine(layer + "ln_2"),
          .gate = {},
          .up = conv1d(layer + "mlp.c_fc"),
          .down = conv1d(layer + "mlp.c_proj")};
}

std::string StandardWeights::gpt2_prefix() const {
  return has("transformer.wte.weight") ? "transformer." : "";
}

FormulaOuterWeights StandardWeights::gpt2_outer_weights() const {
  const std::string prefix = gpt2_prefix();
  return {tensor(prefix + "wte.weight"), tensor(prefix + "wpe.weight"), affine(prefix + "ln_f"), {}};
}

FormulaOuterWeights StandardWeights::outer_weights() const {
  FormulaOuterWeights outer =
      config_.model_type == "gpt2"
          ? gpt2_outer_weights()
          : FormulaOuterWeights{tensor("model.embed_tokens.weight"), {}, affine("model.norm"), {}};
  outer.head = config_.tie_word_embeddings ? Affine{outer.embedding, {}} : affine("lm_head");
  return outer;
}

FormulaLayer StandardWeights::layer(int64_t number) const {
  static const std::set<std::string> like_llama = {"llama", "mistral", "qwen2", "qwen3"};
  const std::string &family = config_.model_type, llama = "model.layers." + std::to_string(number) + ".";
  if (family == "gpt2") return gpt2_layer(gpt2_prefix() + "h." + std::to_string(number) + ".");
  if (family == "phi3") return phi3_layer(llama);
  TORCH_INTERNAL_ASSERT(like_llama.contains(family), "no formulas for ", family);
  return llama_layer(llama);
}

}  // namespace shardwise::doctor

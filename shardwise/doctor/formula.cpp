#include "shardwise/doctor/formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <set>
#include <string>

#include "shardwise/checkpoint/dtype.h"
#include "shardwise/doctor/quantization_formula.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::doctor {

using at::Tensor;
using config::Config;

namespace {

// The tensors of a checkpoint as named in the formulas, read by the names of transformers' modules. This
// table is independent of config/family*, so that a wrong line in either is found. Sources of names, order of
// fused rows and Conv1D's transposition: transformers, modeling_llama.py (and mistral, qwen2, qwen3),
// modeling_phi3.py, modeling_gpt2.py, pytorch_utils.py.

/// Weight and bias of a linear layer, [out, in] and [out], or of a norm, both [h]. Undefined if not stored.
struct FormulaAffine {
  Tensor weight, bias;
};

/// One layer. q_norm, k_norm and gate are undefined if the architecture has none.
struct FormulaLayer {
  FormulaAffine attention_norm, q, k, v, q_norm, k_norm, o;
  FormulaAffine mlp_norm, gate, up, down;
};

/// Embeddings, final norm and head, which has no bias. A tied head is the embedding.
struct FormulaOuterWeights {
  Tensor embedding, positions;  // [v, h], and [positions, h] if learned
  FormulaAffine norm, head;
};

/// A directory of dense weights. Each tensor is converted to fp64 when read, and quantized if the config says
/// so.
class StandardWeights {
 public:
  /// Errors: those of io::SafetensorsDirectory.
  StandardWeights(const std::filesystem::path& directory, const Config& config);

  FormulaOuterWeights outer_weights() const;
  FormulaLayer layer(int64_t number) const;

 private:
  FormulaLayer llama_layer(const std::string& layer) const;
  FormulaLayer phi3_layer(const std::string& layer) const;
  FormulaLayer gpt2_layer(const std::string& layer) const;
  FormulaOuterWeights gpt2_outer_weights() const;

  bool has(const std::string& name) const { return files_.contains(name); }
  Tensor tensor(const std::string& name) const;
  Tensor tensor_if_stored(const std::string& name) const;
  /// Reads the embedding or the head, whose rows are quantized to int8.
  Tensor embedding(const std::string& name) const;
  /// A linear layer whose weight is stored as `weight`, [out, in], or a norm.
  FormulaAffine affine(const std::string& module, const Tensor& weight) const;
  FormulaAffine affine(const std::string& module) const;
  FormulaAffine conv1d(const std::string& module) const;
  /// "transformer.", or an empty string for files of the model without a head.
  std::string gpt2_prefix() const;

  io::SafetensorsDirectory files_;
  const Config& config_;
};

/// Returns the outputs [begin, begin + size) of a fused projection.
FormulaAffine outputs(const FormulaAffine& fused, int64_t begin, int64_t size) {
  const Tensor bias = fused.bias.defined() ? fused.bias.narrow(0, begin, size) : Tensor();
  return {fused.weight.narrow(0, begin, size), bias};
}

StandardWeights::StandardWeights(const std::filesystem::path& directory, const Config& config)
    : files_(directory.string()), config_(config) {
  TORCH_INTERNAL_ASSERT(!config.quantization || !config.quantization->is_packed(),
                        "the formulas need dense files");
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

Tensor StandardWeights::embedding(const std::string& name) const {
  const Tensor stored = tensor(name);
  return config_.quantization ? quantized_values(stored, /*bits=*/8, /*group_size=*/0) : stored;
}

FormulaAffine StandardWeights::affine(const std::string& module, const Tensor& weight) const {
  const Tensor bias = tensor_if_stored(module + ".bias");
  if (!config_.quantization || weight.dim() == 1) return {weight, bias};
  return {quantized_values(weight, config_.quantization->bits, config_.quantization->group_size), bias};
}

FormulaAffine StandardWeights::affine(const std::string& module) const {
  return affine(module, tensor(module + ".weight"));
}

/// Reads GPT-2's linear layer, whose weight is stored as [in, out].
FormulaAffine StandardWeights::conv1d(const std::string& module) const {
  return affine(module, tensor(module + ".weight").t());
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
  const FormulaAffine qkv = affine(layer + "self_attn.qkv_proj"),
                      gate_up = affine(layer + "mlp.gate_up_proj");
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
  const FormulaAffine qkv = conv1d(layer + "attn.c_attn");
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
  return {embedding(prefix + "wte.weight"), tensor(prefix + "wpe.weight"), affine(prefix + "ln_f"), {}};
}

FormulaOuterWeights StandardWeights::outer_weights() const {
  FormulaOuterWeights outer =
      config_.model_type == "gpt2"
          ? gpt2_outer_weights()
          : FormulaOuterWeights{embedding("model.embed_tokens.weight"), {}, affine("model.norm"), {}};
  outer.head = {config_.tie_word_embeddings ? outer.embedding : embedding("lm_head.weight"), {}};
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

// The decoder.

/// A micro-batch in the layout of transformers: all [b, s].
struct FormulaBatch {
  Tensor ids, positions, is_token;  // positions start at a sequence's first token
};

FormulaBatch batch_of(const Tensor& ids, const std::vector<base::Range>& valid) {
  const int64_t length = ids.size(0), sequences = ids.size(1);
  const Tensor positions = at::arange(length, at::kLong).repeat({sequences, 1});
  const Tensor ends = at::full({sequences, 1}, length, at::kLong);
  for (size_t i = 0; i < valid.size(); ++i) {
    const auto sequence = static_cast<int64_t>(i);
    positions.select(0, sequence).sub_(valid[i].begin);
    ends.select(0, sequence).fill_(valid[i].size());
  }
  return {ids.t(), positions, positions.ge(0).logical_and(positions.lt(ends))};
}

/// Attention mask and rotary angles.
struct FormulaPositions {
  Tensor mask;    // [b, 1, 1, queries, keys]; true: attends
  Tensor angles;  // [b, 1, s, r/2], where r elements of a head are rotated; undefined if none are
};

/// Returns the causal mask within the window; padding attends to nothing and is not attended to.
Tensor attention_mask(const FormulaBatch& batch, std::optional<int64_t> window) {
  const Tensor key = at::arange(batch.ids.size(1), at::kLong), query = key.unsqueeze(1);
  Tensor mask = key.le(query);
  if (window) mask = mask.logical_and((query - key).lt(*window));
  const Tensor are_tokens = batch.is_token.unsqueeze(2).logical_and(batch.is_token.unsqueeze(1));
  return mask.logical_and(are_tokens).unsqueeze(1).unsqueeze(1);
}

/// Returns radians per position, [r/2]. Llama 3's scaling keeps high frequencies, divides low ones by its
/// factor, and interpolates linearly in the number of periods in the original context.
Tensor rotary_frequencies(const Config& config) {
  const auto rotary_dim = static_cast<int64_t>(config.head_dim * config.partial_rotary_factor);
  const Tensor exponents = at::arange(0, rotary_dim, 2, at::kDouble) / static_cast<double>(rotary_dim);
  Tensor plain = at::pow(config.rope_theta, -exponents);
  if (!config.rope_scaling) return plain;
  const auto& [factor, low, high, context] = *config.rope_scaling;
  const Tensor periods = plain * (static_cast<double>(context) / (2 * std::numbers::pi));
  const Tensor unscaled = ((periods - low) / (high - low)).clamp(0, 1);
  return plain * (unscaled + (1 - unscaled) / factor);
}

Tensor angles(const FormulaBatch& batch, const Config& config) {
  if (config.positions != config::Positions::rotary) return {};
  return (batch.positions.unsqueeze(-1) * rotary_frequencies(config)).unsqueeze(1);
}

/// Rotates `x` [b, n, s, d]: elements i and i + r/2 of a head are the coordinates of a point.
Tensor rotated(const Tensor& x, const Tensor& angles) {
  const int64_t half = angles.size(-1), rest = x.size(-1) - 2 * half;
  const Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const Tensor cos = angles.cos(), sin = angles.sin();
  return at::cat({first * cos - second * sin, first * sin + second * cos, x.narrow(-1, 2 * half, rest)}, -1);
}

Tensor linear(const Tensor& x, const FormulaAffine& w) {
  const Tensor y = at::matmul(x, w.weight.t());
  return w.bias.defined() ? y + w.bias : y;
}

/// Applies LayerNorm if there is a bias, RMSNorm otherwise.
Tensor norm(const Tensor& x, const FormulaAffine& w, double eps) {
  if (w.bias.defined()) return at::layer_norm(x, {x.size(-1)}, w.weight, w.bias, eps);
  return x / (x.square().mean(-1, /*keepdim=*/true) + eps).sqrt() * w.weight;
}

/// Returns softmax(q·kᵀ/√d)·v with `mask`; zero if a query attends to nothing.
Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor is_hidden = mask.logical_not();
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  return at::matmul(at::softmax(scores.masked_fill(is_hidden, minus_infinity), -1).masked_fill(is_hidden, 0),
                    v);
}

/// Computes attention of `x` [b, s, h]. Query heads that share a KV head are adjacent.
Tensor attention(const Tensor& x, const FormulaLayer& w, const FormulaPositions& positions,
                 const Config& config) {
  const int64_t b = x.size(0), s = x.size(1), k = config.num_key_value_heads, d = config.head_dim;
  const int64_t shared = config.num_attention_heads / k;
  const auto heads = [&](const FormulaAffine& projection) {
    return linear(x, projection).reshape({b, s, -1, d});
  };
  const auto positioned = [&](const FormulaAffine& projection, const FormulaAffine& head_norm) {
    Tensor head = heads(projection);
    if (head_norm.weight.defined()) head = norm(head, head_norm, config.norm_eps);
    head = head.transpose(1, 2);
    return positions.angles.defined() ? rotated(head, positions.angles) : head;
  };
  const Tensor queries = positioned(w.q, w.q_norm).reshape({b, k, shared, s, d});
  const Tensor keys = positioned(w.k, w.k_norm).unsqueeze(2),
               values = heads(w.v).transpose(1, 2).unsqueeze(2);
  const Tensor rows = masked_attention(queries, keys, values, positions.mask).permute({0, 3, 1, 2, 4});
  return linear(rows.reshape({b, s, k * shared * d}), w.o);
}

Tensor mlp(const Tensor& x, const FormulaLayer& w, config::Activation activation) {
  const Tensor up = linear(x, w.up);
  if (w.gate.weight.defined()) return linear(at::silu(linear(x, w.gate)) * up, w.down);
  return linear(at::gelu(up, activation == config::Activation::gelu_tanh ? "tanh" : "none"), w.down);
}

Tensor embedded(const FormulaBatch& batch, const FormulaOuterWeights& outer) {
  Tensor x = at::embedding(outer.embedding, batch.ids);
  if (!outer.positions.defined()) return x;
  return x + at::embedding(outer.positions, batch.positions.clamp_min(0));
}

}  // namespace

Tensor formula_logits(const std::filesystem::path& directory, const Config& config, const Tensor& ids,
                      const std::vector<base::Range>& valid) {
  const at::NoGradGuard no_grad;
  const StandardWeights weights(directory, config);
  const FormulaOuterWeights outer = weights.outer_weights();
  const FormulaBatch batch = batch_of(ids, valid);
  Tensor x = embedded(batch, outer);
  for (int64_t number = 0; number < config.num_hidden_layers; ++number) {
    const FormulaLayer w = weights.layer(number);
    const bool slides =
        config.sliding_layers.empty() || config.sliding_layers.at(static_cast<size_t>(number));
    const FormulaPositions positions{attention_mask(batch, slides ? config.sliding_window : std::nullopt),
                                     angles(batch, config)};
    x = x + attention(norm(x, w.attention_norm, config.norm_eps), w, positions, config);
    x = x + mlp(norm(x, w.mlp_norm, config.norm_eps), w, config.activation);
  }
  return linear(norm(x, outer.norm, config.norm_eps), outer.head).transpose(0, 1).contiguous();
}

}  // namespace shardwise::doctor

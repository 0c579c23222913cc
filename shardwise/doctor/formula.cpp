#include "shardwise/doctor/formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
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

#include "shardwise/doctor/formula_weights.h"

namespace shardwise::doctor {

using at::Tensor;
using model::Config;

namespace {

/// A micro-batch in the layout of transformers: all [b, s].
struct Batch {
  Tensor ids, positions, is_token;  // positions start at a sequence's first token
};

Batch batch_of(const Tensor& ids, const std::vector<base::Range>& valid) {
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
struct Positions {
  Tensor mask;    // [b, 1, 1, queries, keys]; true: attends
  Tensor angles;  // [b, 1, s, r/2], where r elements of a head are rotated; undefined if none are
};

/// Returns the causal mask within the window; padding attends to nothing and is not attended to.
Tensor attention_mask(const Batch& batch, std::optional<int64_t> window) {
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

Tensor angles(const Batch& batch, const Config& config) {
  if (config.positions != model::Positions::rotary) return {};
  return (batch.positions.unsqueeze(-1) * rotary_frequencies(config)).unsqueeze(1);
}

/// Rotates `x` [b, n, s, d]: elements i and i + r/2 of a head are the coordinates of a point.
Tensor rotated(const Tensor& x, const Tensor& angles) {
  const int64_t half = angles.size(-1), rest = x.size(-1) - 2 * half;
  const Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const Tensor cos = angles.cos(), sin = angles.sin();
  return at::cat({first * cos - second * sin, first * sin + second * cos, x.narrow(-1, 2 * half, rest)}, -1);
}

Tensor linear(const Tensor& x, const Affine& w) {
  const Tensor y = at::matmul(x, w.weight.t());
  return w.bias.defined() ? y + w.bias : y;
}

/// Applies LayerNorm if there is a bias, RMSNorm otherwise.
Tensor norm(const Tensor& x, const Affine& w, double eps) {
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
Tensor attention(const Tensor& x, const FormulaLayer& w, const Positions& positions, const Config& config) {
  const int64_t b = x.size(0), s = x.size(1), k = config.num_key_value_heads, d = config.head_dim;
  const int64_t shared = config.num_attention_heads / k;
  const auto heads = [&](const Affine& projection) { return linear(x, projection).reshape({b, s, -1, d}); };
  const auto positioned = [&](const Affine& projection, const Affine& head_norm) {
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

Tensor mlp(const Tensor& x, const FormulaLayer& w, model::Activation activation) {
  const Tensor up = linear(x, w.up);
  if (w.gate.weight.defined()) return linear(at::silu(linear(x, w.gate)) * up, w.down);
  return linear(at::gelu(up, activation == model::Activation::gelu_tanh ? "tanh" : "none"), w.down);
}

Tensor embedded(const Batch& batch, const FormulaOuterWeights& outer) {
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
  const Batch batch = batch_of(ids, valid);
  Tensor x = embedded(batch, outer);
  for (int64_t number = 0; number < config.num_hidden_layers; ++number) {
    const FormulaLayer w = weights.layer(number);
    const bool slides =
        config.sliding_layers.empty() || config.sliding_layers.at(static_cast<size_t>(number));
    const Positions positions{attention_mask(batch, slides ? config.sliding_window : std::nullopt),
                              angles(batch, config)};
    x = x + attention(norm(x, w.attention_norm, config.norm_eps), w, positions, config);
    x = x + mlp(norm(x, w.mlp_norm, config.norm_eps), w, config.activation);
  }
  return linear(norm(x, outer.norm, config.norm_eps), outer.head).transpose(0, 1).contiguous();
}

}  // namespace shardwise::doctor

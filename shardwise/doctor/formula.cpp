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

/// A micro-batch, laid out as transformers does: [b, s] all.
struct Batch {
  Tensor ids, positions, is_token;  // positions are counted from a sequence's first token
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

/// What an attention knows of where its rows are.
struct Places {
  Tensor is_seen;  // [b, 1, 1, queries, keys]
  Tensor angles;   // [b, 1, s, r/2], r being the elements of a head that are turned; undefined: none
};

/// What came before and itself, as far as the window reaches; nothing of or by padding.
Tensor seen(const Batch& batch, std::optional<int64_t> window) {
  const Tensor key = at::arange(batch.ids.size(1), at::kLong), query = key.unsqueeze(1);
  Tensor is_seen = key.le(query);
  if (window) is_seen = is_seen.logical_and((query - key).lt(*window));
  const Tensor of_tokens = batch.is_token.unsqueeze(2).logical_and(batch.is_token.unsqueeze(1));
  return is_seen.logical_and(of_tokens).unsqueeze(1).unsqueeze(1);
}

/// Radians per position, [r/2]. Llama 3's scaling leaves short waves as they are, slows long ones down by its
/// factor, and goes over from one to the other linearly in how often a wave fits into the old context.
Tensor frequencies(const Config& config) {
  const auto turned = static_cast<int64_t>(config.head_dim * config.partial_rotary_factor);
  const Tensor exponents = at::arange(0, turned, 2, at::kDouble) / static_cast<double>(turned);
  Tensor plain = at::pow(config.rope_theta, -exponents);
  if (!config.rope_scaling) return plain;
  const auto& [factor, low, high, context] = *config.rope_scaling;
  const Tensor fits = plain * (static_cast<double>(context) / (2 * std::numbers::pi));
  const Tensor kept = ((fits - low) / (high - low)).clamp(0, 1);
  return plain * (kept + (1 - kept) / factor);
}

Tensor angles(const Batch& batch, const Config& config) {
  if (config.positions != model::Positions::rotary) return {};
  return (batch.positions.unsqueeze(-1) * frequencies(config)).unsqueeze(1);
}

/// `x` [b, n, s, d]. Element i and element i + r/2 of a head are a point that is turned about the origin.
Tensor turned(const Tensor& x, const Tensor& angles) {
  const int64_t half = angles.size(-1), rest = x.size(-1) - 2 * half;
  const Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const Tensor cos = angles.cos(), sin = angles.sin();
  return at::cat({first * cos - second * sin, first * sin + second * cos, x.narrow(-1, 2 * half, rest)}, -1);
}

Tensor linear(const Tensor& x, const Affine& w) {
  const Tensor y = at::matmul(x, w.weight.t());
  return w.bias.defined() ? y + w.bias : y;
}

/// LayerNorm where there is a bias, RMSNorm otherwise.
Tensor norm(const Tensor& x, const Affine& w, double eps) {
  if (w.bias.defined()) return at::layer_norm(x, {x.size(-1)}, w.weight, w.bias, eps);
  return x / (x.square().mean(-1, /*keepdim=*/true) + eps).sqrt() * w.weight;
}

/// softmax(q·kᵀ/√d)·v over what is seen; zero where nothing is.
Tensor mixed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& is_seen) {
  const Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor is_hidden = is_seen.logical_not();
  const double never = -std::numeric_limits<double>::infinity();
  return at::matmul(at::softmax(scores.masked_fill(is_hidden, never), -1).masked_fill(is_hidden, 0), v);
}

/// `x` [b, s, h]. The query heads of one KV head lie side by side.
Tensor attention(const Tensor& x, const FormulaLayer& w, const Places& places, const Config& config) {
  const int64_t b = x.size(0), s = x.size(1), k = config.num_key_value_heads, d = config.head_dim;
  const int64_t shared = config.num_attention_heads / k;
  const auto heads = [&](const Affine& projection) { return linear(x, projection).reshape({b, s, -1, d}); };
  const auto placed = [&](const Affine& projection, const Affine& head_norm) {
    Tensor head = heads(projection);
    if (head_norm.weight.defined()) head = norm(head, head_norm, config.norm_eps);
    head = head.transpose(1, 2);
    return places.angles.defined() ? turned(head, places.angles) : head;
  };
  const Tensor queries = placed(w.q, w.q_norm).reshape({b, k, shared, s, d});
  const Tensor keys = placed(w.k, w.k_norm).unsqueeze(2), values = heads(w.v).transpose(1, 2).unsqueeze(2);
  const Tensor rows = mixed(queries, keys, values, places.is_seen).permute({0, 3, 1, 2, 4});
  return linear(rows.reshape({b, s, k * shared * d}), w.o);
}

Tensor mlp(const Tensor& x, const FormulaLayer& w, model::Activation activation) {
  const Tensor up = linear(x, w.up);
  if (w.gate.weight.defined()) return linear(at::silu(linear(x, w.gate)) * up, w.down);
  return linear(at::gelu(up, activation == model::Activation::gelu_tanh ? "tanh" : "none"), w.down);
}

Tensor embedded(const Batch& batch, const FormulaEnds& ends) {
  Tensor x = at::embedding(ends.embedding, batch.ids);
  if (!ends.positions.defined()) return x;
  return x + at::embedding(ends.positions, batch.positions.clamp_min(0));
}

}  // namespace

Tensor formula_logits(const std::filesystem::path& directory, const Config& config, const Tensor& ids,
                      const std::vector<base::Range>& valid) {
  const at::NoGradGuard no_grad;
  const StandardWeights weights(directory, config);
  const FormulaEnds ends = weights.ends();
  const Batch batch = batch_of(ids, valid);
  Tensor x = embedded(batch, ends);
  for (int64_t number = 0; number < config.num_hidden_layers; ++number) {
    const FormulaLayer w = weights.layer(number);
    const bool slides = config.slides.empty() || config.slides.at(static_cast<size_t>(number));
    const Places places{seen(batch, slides ? config.sliding_window : std::nullopt), angles(batch, config)};
    x = x + attention(norm(x, w.attention_norm, config.norm_eps), w, places, config);
    x = x + mlp(norm(x, w.mlp_norm, config.norm_eps), w, config.activation);
  }
  return linear(norm(x, ends.norm, config.norm_eps), ends.head).transpose(0, 1).contiguous();
}

}  // namespace shardwise::doctor

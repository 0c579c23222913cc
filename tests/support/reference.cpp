#include "tests/support/reference.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numbers>
#include <random>

#include "shardwise/kernels/dropout.h"
#include "shardwise/nn/dropout.h"

namespace shardwise::testing {
namespace {

std::string layer_name(int64_t layer, const std::string& rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

// The weights by name, and the arithmetic that they meet: what is stored, and after sums of how many terms
// (docs/numerics.md §3).
struct Lookup {
  const Tensors& weights;
  const Rounding& rounding;
  int64_t tokens;

  at::Tensor operator()(const std::string& name) const { return rounding.weight(weights.at(name), tokens); }
  bool has(const std::string& name) const { return weights.count(name) > 0; }

  at::Tensor matmul(const at::Tensor& x, const std::string& name) const {
    return at::matmul(x, (*this)(name + ".weight").t());
  }
  at::Tensor column(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = matmul(x, name);
    return rounding.stored(has(name + ".bias") ? y + (*this)(name + ".bias") : y, {.value = x.size(-1)});
  }
  // Each rank's term is stored, and their sum, and what the bias is added to.
  at::Tensor row(const at::Tensor& x, const std::string& name) const {
    const at::Tensor term = rounding.stored(matmul(x, name), {.value = x.size(-1)});
    const at::Tensor sum = rounding.stored(term, {});
    return has(name + ".bias") ? rounding.stored(sum + (*this)(name + ".bias"), {}) : sum;
  }
  // What column-parallel products of `outputs` columns read: each rank's term of its gradient is stored, and
  // their sum.
  at::Tensor column_input(const at::Tensor& x, int64_t outputs) const {
    return rounding.branch(rounding.branch(x, 1), outputs);
  }
};

at::Tensor rms_norm(const at::Tensor& x, const std::string& name, double eps, const Lookup& w) {
  const int64_t hidden = x.size(-1);
  const at::Tensor in = w.rounding.branch(x, hidden);
  const at::Tensor rstd = at::rsqrt((in * in).mean(-1, /*keepdim=*/true) + eps);
  return w.rounding.stored(in * w.rounding.kept(rstd, {hidden, hidden}) * w(name), {});
}

at::Tensor rotate_half(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

// `x` [b, heads, s, d]; the angle of position p and frequency i is p·f_i, for both halves of the head.
at::Tensor rotate(const at::Tensor& x, const std::vector<double>& frequencies) {
  const auto doubles = at::TensorOptions(at::kDouble);
  const at::Tensor angles = at::outer(at::arange(x.size(2), doubles), at::tensor(frequencies, doubles));
  const at::Tensor both = at::cat({angles, angles}, -1);
  return x * both.cos().to(x.scalar_type()) + rotate_half(x) * both.sin().to(x.scalar_type());
}

// [s, b, heads·d] → [b, heads, s, d]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).permute({1, 2, 0, 3});
}

// A backward from the stored output takes rowsum(dO ∘ O) where ordinary autograd takes rowsum(P ∘ dP): what
// storing changed in O then reaches every score of the row, as P · rowsum(dO ∘ change). The log-sum-exp's
// gradient is P.
at::Tensor as_stored(const at::Tensor& out, const at::Tensor& scores, const Lookup& w) {
  const at::Tensor stored = w.rounding.stored(out, {.value = scores.size(-1)});
  const at::Tensor change = (stored - out).detach();
  const at::Tensor lse = at::logsumexp(scores, {-1}, /*keepdim=*/true);
  return stored - change * (lse - lse.detach());
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Lookup& w) {
  const int64_t length = q.size(2), d = q.size(3);
  const at::Tensor products = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  const at::Tensor scores = w.rounding.kept(products, {.value = d}).masked_fill(future, -INFINITY);
  const at::Tensor probabilities = w.rounding.kept(at::softmax(scores, -1), {});
  return as_stored(at::matmul(probabilities, v), scores, w);
}

at::Tensor self_attention(const at::Tensor& x, int64_t layer, const model::Config& config, const Lookup& w) {
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const int64_t length = x.size(0);
  const at::Tensor in = w.column_input(x, (heads + 2 * kv_heads) * config.head_dim);
  const auto project = [&](const char* which, int64_t count) {
    return split_heads(w.column(in, layer_name(layer, std::string("self_attn.") + which)), count);
  };
  const auto stored = [&](const at::Tensor& head) { return w.rounding.stored(head, {.gradient = length}); };
  const std::vector<double> frequencies = reference_frequencies(config);
  const at::Tensor q = stored(rotate(project("q_proj", heads), frequencies));
  const at::Tensor k = stored(rotate(project("k_proj", kv_heads), frequencies));
  const at::Tensor v = stored(project("v_proj", kv_heads));
  const int64_t group = heads / kv_heads;
  const at::Tensor mixed = attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), w);
  const at::Tensor rows = mixed.permute({2, 0, 1, 3}).reshape({length, x.size(1), -1});
  return w.row(w.rounding.branch(rows, config.hidden_size), layer_name(layer, "self_attn.o_proj"));
}

at::Tensor mlp(const at::Tensor& x, int64_t layer, const Lookup& w) {
  const std::string name = layer_name(layer, "mlp.");
  const at::Tensor in = w.column_input(x, 2 * w.weights.at(name + "gate_proj.weight").size(0));
  const at::Tensor gate = w.column(in, name + "gate_proj"), up = w.column(in, name + "up_proj");
  const at::Tensor product = w.rounding.stored(gate * at::sigmoid(gate) * up, {.gradient = x.size(-1)});
  return w.row(product, name + "down_proj");
}

at::Tensor masked(const at::Tensor& x, const Masks& masks, size_t site, const Lookup& w) {
  return masks.empty() ? x : w.rounding.stored(x * masks.at(site), {});
}

// From the embedding's output to the logits.
at::Tensor decode(const at::Tensor& embedded, const model::Config& config, const Lookup& w,
                  const Masks& masks) {
  at::Tensor x = masked(w.rounding.stored(embedded, {}), masks, 0, w);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto norm = [&](const char* name) {
      return rms_norm(x, layer_name(layer, name), config.norm_eps, w);
    };
    const at::Tensor attended = self_attention(norm("input_layernorm.weight"), layer, config, w);
    x = w.rounding.stored(x + masked(attended, masks, 1 + 2 * layer, w), {});
    const at::Tensor expanded = mlp(norm("post_attention_layernorm.weight"), layer, w);
    x = w.rounding.stored(x + masked(expanded, masks, 2 + 2 * layer, w), {});
  }
  const std::string head = config.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
  const at::Tensor last = rms_norm(x, "model.norm.weight", config.norm_eps, w);
  return w.column(w.column_input(last, config.vocab_size), head);
}

at::Tensor cross_entropy(const at::Tensor& logits, const Batch& batch, const Lookup& w) {
  const at::Tensor ignored = batch.labels == -100;
  const at::Tensor label = batch.labels.masked_fill(ignored, 0).unsqueeze(-1);
  // The log-sum-exp is kept, and the backward's probabilities are its exponentials.
  const at::Tensor lse = w.rounding.kept(at::logsumexp(logits, {-1}, /*keepdim=*/true), {logits.size(-1)});
  const at::Tensor token_loss = w.rounding.kept(lse - logits.gather(-1, label), {}).squeeze(-1);
  const at::Tensor sum = token_loss.masked_fill(ignored, 0).sum();
  return w.rounding.kept(sum / batch.valid_tokens, {.value = w.tokens});
}

at::Tensor random_normal(const std::vector<int64_t>& shape, double mean, double std,
                         std::mt19937_64& random) {
  at::Tensor drawn = at::empty(shape, at::kDouble);
  std::normal_distribution<double> normal(mean, std);
  for (int64_t i = 0; i < drawn.numel(); ++i) drawn.mutable_data_ptr<double>()[i] = normal(random);
  return drawn;
}

}  // namespace

std::map<std::string, std::vector<int64_t>> stored_shapes(const model::Config& c) {
  const int64_t hidden = c.hidden_size, ffn = c.intermediate_size;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  std::map<std::string, std::vector<int64_t>> shapes = {{"model.embed_tokens.weight", {c.vocab_size, hidden}},
                                                        {"model.norm.weight", {hidden}}};
  if (!c.tie_word_embeddings) shapes["lm_head.weight"] = {c.vocab_size, hidden};
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool has_bias) {
    shapes[name + ".weight"] = {out, in};
    if (has_bias) shapes[name + ".bias"] = {out};
  };
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    shapes[layer_name(layer, "input_layernorm.weight")] = {hidden};
    shapes[layer_name(layer, "post_attention_layernorm.weight")] = {hidden};
    linear(layer_name(layer, "self_attn.q_proj"), q, hidden, c.qkv_bias);
    linear(layer_name(layer, "self_attn.k_proj"), kv, hidden, c.qkv_bias);
    linear(layer_name(layer, "self_attn.v_proj"), kv, hidden, c.qkv_bias);
    linear(layer_name(layer, "self_attn.o_proj"), hidden, q, c.attention_out_bias);
    linear(layer_name(layer, "mlp.gate_proj"), ffn, hidden, c.mlp_bias);
    linear(layer_name(layer, "mlp.up_proj"), ffn, hidden, c.mlp_bias);
    linear(layer_name(layer, "mlp.down_proj"), hidden, ffn, c.mlp_bias);
  }
  return shapes;
}

Tensors random_weights(const model::Config& config, uint64_t seed, at::ScalarType dtype) {
  std::mt19937_64 random(seed);
  Tensors weights;
  for (const auto& [name, shape] : stored_shapes(config)) {
    const bool is_norm = name.find("norm") != std::string::npos, is_matrix = shape.size() == 2;
    const double std = is_matrix ? 1 / std::sqrt(static_cast<double>(shape[1])) : 0.3;
    weights[name] = random_normal(shape, is_norm ? 1 : 0, std, random).to(dtype).requires_grad_();
  }
  return weights;
}

Batch random_batch(const model::Config& config, int64_t sequence, int64_t batch, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int64_t> id(0, config.vocab_size - 1);
  Batch drawn{at::empty({sequence, batch}, at::kLong), at::empty({sequence, batch}, at::kLong), 3};
  for (int64_t i = 0; i < sequence * batch; ++i) {
    const bool is_ignored = i % 5 == 4;
    drawn.ids.mutable_data_ptr<int64_t>()[i] = id(random);
    drawn.labels.mutable_data_ptr<int64_t>()[i] = is_ignored ? -100 : id(random);
    drawn.valid_tokens += !is_ignored;
  }
  return drawn;
}

Masks dropout_masks(const model::Config& config, int64_t sequence, int64_t batch, double p,
                    kernels::RandomKey key, at::ScalarType dtype) {
  if (p == 0) return {};
  const at::Tensor ones = at::ones({sequence, batch, config.hidden_size}, dtype);
  const auto draw = [&](int64_t layer, nn::Place::Site site) {
    return kernels::dropout(ones, p, nn::mask_key(key, {layer, site}), /*first_element=*/0);
  };
  Masks masks = {draw(-1, nn::Place::embedding)};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    masks.push_back(draw(layer, nn::Place::attention_output));
    masks.push_back(draw(layer, nn::Place::mlp_output));
  }
  return masks;
}

ReferenceResult reference_step(const model::Config& config, const Tensors& weights, const Batch& batch,
                               const Masks& masks, const Rounding& rounding) {
  const Lookup w{weights, rounding, batch.ids.numel()};
  const at::Tensor embedded = at::embedding(w("model.embed_tokens.weight"), batch.ids);
  const at::Tensor logits = decode(embedded, config, w, masks);
  const at::Tensor loss = cross_entropy(logits, batch, w);

  std::vector<std::string> names;
  std::vector<at::Tensor> wanted = {embedded};
  for (const auto& [name, weight] : weights) {
    names.push_back(name);
    wanted.push_back(weight);
  }
  const auto gradients = torch::autograd::grad({loss}, wanted);
  ReferenceResult result{logits.detach(), loss.item<double>(), {}, gradients[0]};
  for (size_t i = 0; i < names.size(); ++i) result.gradients[names[i]] = gradients[i + 1];
  return result;
}

std::vector<double> reference_frequencies(const model::Config& config) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    double frequency = std::pow(config.rope_theta, -2.0 * i / config.head_dim);
    if (const auto& scaling = config.rope_scaling) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double context = scaling->original_max_position_embeddings;
      if (wavelength > context / scaling->low_freq_factor) {
        frequency /= scaling->factor;
      } else if (wavelength > context / scaling->high_freq_factor) {
        const double smooth = (context / wavelength - scaling->low_freq_factor) /
                              (scaling->high_freq_factor - scaling->low_freq_factor);
        frequency = (1 - smooth) * frequency / scaling->factor + smooth * frequency;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace shardwise::testing

#include "tests/support/reference.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
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

// One weight's lookup by name, and its bias where the model has one.
struct Lookup {
  const Tensors& weights;

  const at::Tensor& operator()(const std::string& name) const { return weights.at(name); }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const auto bias = weights.find(name + ".bias");
    const at::Tensor y = at::matmul(x, weights.at(name + ".weight").t());
    return bias == weights.end() ? y : y + bias->second;
  }
};

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt((x * x).mean(-1, /*keepdim=*/true) + eps) * weight;
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

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t length = q.size(2);
  const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  return at::matmul(at::softmax(scores.masked_fill(future, -INFINITY), -1), v);
}

at::Tensor self_attention(const at::Tensor& x, int64_t layer, const model::Config& config, const Lookup& w) {
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const auto project = [&](const char* which, int64_t count) {
    return split_heads(w.linear(x, layer_name(layer, std::string("self_attn.") + which)), count);
  };
  const std::vector<double> frequencies = reference_frequencies(config);
  const at::Tensor q = rotate(project("q_proj", heads), frequencies);
  const at::Tensor k =
      rotate(project("k_proj", kv_heads), frequencies).repeat_interleave(heads / kv_heads, 1);
  const at::Tensor v = project("v_proj", kv_heads).repeat_interleave(heads / kv_heads, 1);
  const at::Tensor mixed = attention(q, k, v).permute({2, 0, 1, 3}).reshape({x.size(0), x.size(1), -1});
  return w.linear(mixed, layer_name(layer, "self_attn.o_proj"));
}

at::Tensor mlp(const at::Tensor& x, int64_t layer, const Lookup& w) {
  const at::Tensor gate = w.linear(x, layer_name(layer, "mlp.gate_proj"));
  const at::Tensor up = w.linear(x, layer_name(layer, "mlp.up_proj"));
  return w.linear(gate * at::sigmoid(gate) * up, layer_name(layer, "mlp.down_proj"));
}

at::Tensor masked(const at::Tensor& x, const Masks& masks, size_t site) {
  return masks.empty() ? x : x * masks.at(site);
}

// From the embedding's output to the logits.
at::Tensor decode(const at::Tensor& embedded, const model::Config& config, const Lookup& w,
                  const Masks& masks) {
  at::Tensor x = masked(embedded, masks, 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const at::Tensor normed1 =
        rms_norm(x, w(layer_name(layer, "input_layernorm.weight")), config.norm_eps);
    x = x + masked(self_attention(normed1, layer, config, w), masks, 1 + 2 * layer);
    const at::Tensor normed2 =
        rms_norm(x, w(layer_name(layer, "post_attention_layernorm.weight")), config.norm_eps);
    x = x + masked(mlp(normed2, layer, w), masks, 2 + 2 * layer);
  }
  const std::string head = config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  return at::matmul(rms_norm(x, w("model.norm.weight"), config.norm_eps), w(head).t());
}

at::Tensor cross_entropy(const at::Tensor& logits, const Batch& batch) {
  const at::Tensor ignored = batch.labels == -100;
  const at::Tensor label = batch.labels.masked_fill(ignored, 0).unsqueeze(-1);
  const at::Tensor log_probability = at::log_softmax(logits, -1).gather(-1, label).squeeze(-1);
  return -log_probability.masked_fill(ignored, 0).sum() / batch.valid_tokens;
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
                               const Masks& masks) {
  const Lookup w{weights};
  const at::Tensor embedded = at::embedding(w("model.embed_tokens.weight"), batch.ids);
  const at::Tensor logits = decode(embedded, config, w, masks);
  const at::Tensor loss = cross_entropy(logits, batch);

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

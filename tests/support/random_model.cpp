// The inputs of the reference: shapes, weights, batches and dropout masks.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "shardwise/kernels/dropout.h"
#include "shardwise/kernels/dropout_isa.h"
#include "shardwise/nn/dropout.h"
#include "tests/support/reference.h"

namespace shardwise::testing {
namespace {

// Collects tensor shapes. Names are without ".weight" or ".bias".
struct Shapes {
  const config::Config& c;
  std::map<std::string, std::vector<int64_t>> by_name = {};

  explicit Shapes(const config::Config& config) : c(config) {}

  void table(const std::string& name, int64_t rows) { by_name[name + ".weight"] = {rows, c.hidden_size}; }
  void norm(const std::string& name) {
    by_name[name + ".weight"] = {c.hidden_size};
    if (c.norm == config::Norm::layer) by_name[name + ".bias"] = {c.hidden_size};
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool has_bias) {
    by_name[name + ".weight"] = {out, in};
    if (has_bias) by_name[name + ".bias"] = {out};
  }
  void layer(const std::string& name) {
    const int64_t h = c.hidden_size, f = c.intermediate_size;
    const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
    norm(name + "input_layernorm");
    norm(name + "post_attention_layernorm");
    linear(name + "self_attn.q_proj", q, h, c.qkv_bias);
    linear(name + "self_attn.k_proj", kv, h, c.qkv_bias);
    linear(name + "self_attn.v_proj", kv, h, c.qkv_bias);
    linear(name + "self_attn.o_proj", h, q, c.attention_out_bias);
    if (c.qk_norm) {
      for (const char* which : {"q", "k"})
        by_name[name + "self_attn." + which + "_norm.weight"] = {c.head_dim};
    }
    if (c.activation == config::Activation::silu_gated) linear(name + "mlp.gate_proj", f, h, c.mlp_bias);
    linear(name + "mlp.up_proj", f, h, c.mlp_bias);
    linear(name + "mlp.down_proj", h, f, c.mlp_bias);
  }
};

at::Tensor random_normal(const std::vector<int64_t>& shape, double mean, double std,
                         std::mt19937_64& random) {
  at::Tensor drawn = at::empty(shape, at::kDouble);
  std::normal_distribution<double> normal(mean, std);
  std::generate_n(drawn.mutable_data_ptr<double>(), drawn.numel(), [&] { return normal(random); });
  return drawn;
}

// A row of probabilities uses full groups of random words.
int64_t drawn_row(int64_t keys) {
  return (keys + kernels::kDropoutGroup - 1) / kernels::kDropoutGroup * kernels::kDropoutGroup;
}

// [b, a, s, keys drawn] → [b, a, s, s]. Queries and keys are counted from a sequence's first token.
at::Tensor of_tokens(const at::Tensor& drawn, const std::vector<base::Range>& valid) {
  const int64_t length = drawn.size(2);
  const at::Tensor full = drawn.narrow(3, 0, length);
  at::Tensor mask = full.clone();
  for (size_t sequence = 0; sequence < valid.size(); ++sequence) {
    const auto [begin, end] = valid[sequence];
    mask[sequence]
        .narrow(1, begin, end - begin)
        .narrow(2, begin, end - begin)
        .copy_(full[sequence].narrow(1, 0, end - begin).narrow(2, 0, end - begin));
  }
  return mask;
}

}  // namespace

std::map<std::string, std::vector<int64_t>> stored_shapes(const config::Config& config) {
  Shapes shapes(config);
  shapes.table("model.embed_tokens", config.vocab_size);
  if (config.positions == config::Positions::learned)
    shapes.table("model.embed_positions", config.max_position_embeddings);
  if (!config.tie_word_embeddings) shapes.table("lm_head", config.vocab_size);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    shapes.layer("model.layers." + std::to_string(layer) + ".");
  shapes.norm("model.norm");
  return shapes.by_name;
}

Tensors random_weights(const config::Config& config, uint64_t seed, at::ScalarType dtype) {
  std::mt19937_64 random(seed);
  Tensors weights;
  for (const auto& [name, shape] : stored_shapes(config)) {
    const bool is_norm = name.find("norm.weight") != std::string::npos, is_matrix = shape.size() == 2;
    const double std = is_matrix ? 1 / std::sqrt(static_cast<double>(shape[1])) : 0.3;
    weights[name] = random_normal(shape, is_norm ? 1 : 0, std, random).to(dtype).requires_grad_();
  }
  return weights;
}

Batch random_batch(const config::Config& config, int64_t sequence, int64_t batch, uint64_t seed) {
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

Masks dropout_masks(const config::Config& config, const Batch& batch, const Dropout& p,
                    kernels::RandomKey key, at::ScalarType dtype) {
  const int64_t sequence = batch.ids.size(0), sequences = batch.ids.size(1);
  const auto draw = [&](std::vector<int64_t> shape, double rate, const nn::DropoutSite& place) {
    return kernels::dropout(at::ones(shape, dtype), rate, nn::mask_key(key, place), /*first_element=*/0);
  };
  const auto of_stream = [&](int64_t layer, nn::DropoutSite::Site site) {
    return draw({sequence, sequences, config.hidden_size}, p.stream, {layer, site});
  };
  Masks masks;
  if (p.stream > 0) masks.stream.push_back(of_stream(-1, nn::DropoutSite::Site::embedding));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (p.stream > 0) {
      masks.stream.push_back(of_stream(layer, nn::DropoutSite::Site::attention_output));
      masks.stream.push_back(of_stream(layer, nn::DropoutSite::Site::mlp_output));
    }
    if (p.attention > 0) {
      const at::Tensor drawn = draw({sequences, config.num_attention_heads, sequence, drawn_row(sequence)},
                                    p.attention, {layer, nn::DropoutSite::Site::attention_probabilities});
      masks.attention.push_back(of_tokens(drawn, batch.valid));
    }
  }
  return masks;
}

}  // namespace shardwise::testing

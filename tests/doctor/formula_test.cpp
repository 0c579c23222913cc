// The doctor's formulas against those of the tests: two independent implementations, reading files with each
// family's tensor names.
#include "shardwise/doctor/formula.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/stored_model.h"
#include "tests/support/reference.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::doctor::formula_test {
namespace {

using testing::Tensors;

constexpr int64_t kLength = 9;
const std::vector<base::Range> kPadded = {{0, 9}, {4, 9}, {0, 2}, {3, 8}, {5, 5}};

std::string layer_name(const std::string& before, int64_t layer) {
  return before + std::to_string(layer) + ".";
}

/// Concatenates the outputs of `parts`; `leaf` is .weight or .bias.
at::Tensor fused(const Tensors& weights, const std::vector<std::string>& parts, const std::string& leaf) {
  std::vector<at::Tensor> tensors;
  for (const std::string& part : parts) tensors.push_back(weights.at(part + leaf));
  return at::cat(tensors);
}

/// The tests' weights have the names of Llama and similar families.
Tensors as_llama(const Tensors& weights, const config::Config&) {
  return weights;
}

Tensors as_phi3(const Tensors& unfused, const config::Config& config) {
  Tensors weights = unfused;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string attention = layer_name("model.layers.", layer) + "self_attn.",
                      mlp = layer_name("model.layers.", layer) + "mlp.";
    const std::vector<std::string> qkv = {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                                   gate_up = {mlp + "gate_proj", mlp + "up_proj"};
    weights[attention + "qkv_proj.weight"] = fused(weights, qkv, ".weight");
    weights[mlp + "gate_up_proj.weight"] = fused(weights, gate_up, ".weight");
    for (const auto& parts : {qkv, gate_up})
      for (const std::string& part : parts) weights.erase(part + ".weight");
  }
  return weights;
}

void put_gpt2_layer(Tensors& stored, const Tensors& weights, const std::string& from, const std::string& to) {
  const std::string attention = from + "self_attn.";
  for (const std::string leaf : {".weight", ".bias"}) {
    stored[to + "ln_1" + leaf] = weights.at(from + "input_layernorm" + leaf);
    stored[to + "ln_2" + leaf] = weights.at(from + "post_attention_layernorm" + leaf);
    // t() of a vector is that vector.
    stored[to + "attn.c_attn" + leaf] =
        fused(weights, {attention + "q_proj", attention + "k_proj", attention + "v_proj"}, leaf).t();
    stored[to + "attn.c_proj" + leaf] = weights.at(attention + "o_proj" + leaf).t();
    stored[to + "mlp.c_fc" + leaf] = weights.at(from + "mlp.up_proj" + leaf).t();
    stored[to + "mlp.c_proj" + leaf] = weights.at(from + "mlp.down_proj" + leaf).t();
  }
}

/// Without "transformer.", as openai-community/gpt2 is published.
Tensors as_bare_gpt2(const Tensors& weights, const config::Config& config) {
  Tensors stored = {{"wte.weight", weights.at("model.embed_tokens.weight")},
                    {"wpe.weight", weights.at("model.embed_positions.weight")},
                    {"ln_f.weight", weights.at("model.norm.weight")},
                    {"ln_f.bias", weights.at("model.norm.bias")}};
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    put_gpt2_layer(stored, weights, layer_name("model.layers.", layer), layer_name("h.", layer));
  return stored;
}

Tensors as_gpt2(const Tensors& weights, const config::Config& config) {
  Tensors stored;
  for (const auto& [name, weight] : as_bare_gpt2(weights, config)) stored["transformer." + name] = weight;
  if (!config.tie_word_embeddings) stored["lm_head.weight"] = weights.at("lm_head.weight");
  return stored;
}

void set_gpt2(config::Config& config) {
  config.num_key_value_heads = config.num_attention_heads;
  config.hidden_size = config.num_attention_heads * config.head_dim;
  config.norm = config::Norm::layer;
  config.positions = config::Positions::learned;
  config.activation = config::Activation::gelu_tanh;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = config.tie_word_embeddings = true;
}

/// A family and a variant.
struct Kind {
  const char* family;
  const char* variant;
  void (*configure)(config::Config&);
  Tensors (*stored)(const Tensors&, const config::Config&);
};

const Kind kKinds[] = {
    {"llama", "plain", [](config::Config&) {}, as_llama},
    {"llama", "biases, scaled frequencies, tied head",
     [](config::Config& config) {
       config.qkv_bias = config.attention_out_bias = config.mlp_bias = config.tie_word_embeddings = true;
       // The wavelengths are 6.3, 63, 628 and 6283: one is kept, one is interpolated, two are scaled.
       config.rope_scaling = config::RopeScaling{8, 1, 4, 100};
     },
     as_llama},
    {"mistral", "window", [](config::Config& config) { config.sliding_window = 4; }, as_llama},
    {"qwen2", "biases, window in the upper layer",
     [](config::Config& config) {
       config.qkv_bias = true;
       config.sliding_window = 3;
       config.sliding_layers = {false, true};
     },
     as_llama},
    {"qwen3", "q/k norms", [](config::Config& config) { config.qk_norm = true; }, as_llama},
    {"phi3", "partial rotary, window",
     [](config::Config& config) {
       config.partial_rotary_factor = 0.75;
       config.sliding_window = 4;
     },
     as_phi3},
    {"gpt2", "plain", set_gpt2, as_gpt2},
    {"gpt2", "exact GELU, untied head",
     [](config::Config& config) {
       set_gpt2(config);
       config.activation = config::Activation::gelu;
       config.tie_word_embeddings = false;
     },
     as_gpt2},
    {"gpt2", "without prefix", set_gpt2, as_bare_gpt2},
};

config::Config config_of(const Kind& kind) {
  config::Config config = testing::small_config();
  config.model_type = kind.family;
  config.head_dim = 8;
  kind.configure(config);
  config::validate(config);
  return config;
}

void put_weights(const test::TemporaryDirectory& directory, const Tensors& weights,
                 const std::string& dtype) {
  testing::StoredTensors stored;
  for (const auto& [name, weight] : weights) {
    const at::Tensor dense = weight.detach().contiguous();
    stored[name] = {
        dtype, dense.sizes().vec(), {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}};
  }
  directory.put("model.safetensors", testing::safetensors_of(stored));
}

testing::Batch batch_of(const config::Config& config, const std::vector<base::Range>& valid) {
  testing::Batch batch =
      testing::random_batch(config, kLength, static_cast<int64_t>(kPadded.size()), /*seed=*/2);
  batch.valid = valid;
  return batch;
}

/// Returns the error of formula_logits, which reads the files. Padding, which attends to nothing, is
/// included.
double error_of(const test::TemporaryDirectory& directory, const config::Config& config,
                const Tensors& weights, const std::vector<base::Range>& valid) {
  const testing::Batch batch = batch_of(config, valid);
  return testing::relative_error(formula_logits(directory.path(), config, batch.ids, valid),
                                 testing::reference_step(config, weights, batch, /*masks=*/{}).logits);
}

TEST(Formula, MatchesTheReferenceForEveryFamily) {
  for (const Kind& kind : kKinds) {
    const config::Config config = config_of(kind);
    const Tensors weights = testing::random_weights(config, /*seed=*/1, at::kDouble);
    const test::TemporaryDirectory directory;
    put_weights(directory, kind.stored(weights, config), "F64");
    EXPECT_LT(error_of(directory, config, weights, {}), 1e-12) << kind.family << ", " << kind.variant;
    EXPECT_LT(error_of(directory, config, weights, kPadded), 1e-12)
        << kind.family << ", " << kind.variant << ", padded";
  }
}

/// Weights in 16 or 32 bits are widened before any computation.
TEST(Formula, ComputesInFp64FromStoredDtypes) {
  const std::pair<at::ScalarType, const char*> dtypes[] = {
      {at::kFloat, "F32"}, {at::kBFloat16, "BF16"}, {at::kHalf, "F16"}};
  const config::Config config = testing::small_config();
  for (const auto& [dtype, name] : dtypes) {
    const Tensors narrow = testing::random_weights(config, /*seed=*/1, dtype);
    Tensors wide;
    for (const auto& [tensor, weight] : narrow)
      wide[tensor] = weight.detach().to(at::kDouble).requires_grad_();
    const test::TemporaryDirectory directory;
    put_weights(directory, narrow, name);
    EXPECT_LT(error_of(directory, config, wide, {}), 1e-12) << name;
  }
}

}  // namespace
}  // namespace shardwise::doctor::formula_test

// The named shapes. The llama-* ones are the published config.json files of meta-llama/Llama-2-7b-hf,
// meta-llama/Llama-3.2-1B and meta-llama/Meta-Llama-3-8B; tiny and small are ours, over bytes.
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <utility>

#include "shardwise/model/config.h"

namespace shardwise::model {
namespace {

Config over_bytes(int64_t hidden_size, int64_t intermediate_size, int64_t layers, int64_t positions) {
  Config c;
  c.vocab_size = 256;
  c.hidden_size = hidden_size;
  c.intermediate_size = intermediate_size;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.head_dim = hidden_size / c.num_attention_heads;
  c.max_position_embeddings = positions;
  c.rms_norm_eps = 1e-5;
  return c;
}

Config llama_2_7b() {
  Config c;
  c.vocab_size = 32000;
  c.hidden_size = 4096;
  c.intermediate_size = 11008;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 32;
  c.head_dim = 128;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-5;
  c.dtype = "float16";
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

Config llama_3_8b() {
  Config c = llama_2_7b();
  c.vocab_size = 128256;
  c.intermediate_size = 14336;
  c.num_key_value_heads = 8;
  c.max_position_embeddings = 8192;
  c.rope_theta = 500000;
  c.dtype = "bfloat16";
  c.bos_token_id = 128000;
  c.eos_token_id = {128001};
  return c;
}

Config llama_3_2_1b() {
  Config c = llama_3_8b();
  c.hidden_size = 2048;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 16;
  c.head_dim = 64;
  c.max_position_embeddings = 131072;
  c.rope_scaling = RopeScaling{
      .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 8192};
  c.tie_word_embeddings = true;
  return c;
}

std::vector<std::pair<std::string, Config>> presets() {
  return {{"tiny", over_bytes(256, 688, /*layers=*/6, /*positions=*/1024)},
          {"small", over_bytes(512, 1376, /*layers=*/8, /*positions=*/2048)},
          {"llama-2-7b", llama_2_7b()},
          {"llama-3.2-1b", llama_3_2_1b()},
          {"llama-3-8b", llama_3_8b()}};
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

Config preset(const std::string& name) {
  for (const auto& [known, config] : presets()) {
    if (known == name) return config;
  }
  C10_THROW_ERROR(ValueError,
                  fmt::format("preset: must be one of {}; got {}", fmt::join(preset_names(), ", "), name));
}

}  // namespace shardwise::model

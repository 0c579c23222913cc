#include "tests/fuzz/target.h"

#include <cmath>
#include <filesystem>

#include "shardwise/config/config.h"
#include "shardwise/infer/generation_config.h"
#include "shardwise/text/chat_template.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::fuzz {
namespace {

constexpr int64_t kLargestHead = 1 << 16;  // a valid config may require 2^30 frequencies

void read_config(const std::string& path) {
  const config::Config config = config::load_config(path);
  hold(config::parse_config(config::to_json(config), "written") == config,
       "parsing the written config gives the same config");
  hold(config.num_attention_heads % config.num_key_value_heads == 0, "KV heads divide query heads");
  hold(config::parameter_count(config) > 0, "the model has parameters");
  if (config.head_dim > kLargestHead) return;
  for (const double frequency : config::inverse_frequencies(config)) {
    hold(std::isfinite(frequency) && frequency >= 0, "rotary frequencies are finite");
  }
}

void read_generation(const std::string& path) {
  const auto config = infer::read_generation_config(std::filesystem::path(path).parent_path());
  infer::check_sampling(config.sampling, "written");
  infer::check_token_rules(config.rules, /*vocab=*/200'000, "written");
  hold(config.max_new_tokens.value_or(1) >= 1, "it requests at least one token");
}

/// The directory has a tokenizer, whose special tokens this file may name.
void read_tokenizer_config(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path();
  try {
    hold(!text::ChatTemplate::load(directory).special_tokens().contains(""), "special tokens have names");
  } catch (const c10::ValueError& error) {
    check_rejection(error);  // most have no template; the tokenizer reads the rest
  }
  hold(text::load_tokenizer(directory)->vocab_size() > 0, "the tokenizer has tokens");
}

}  // namespace

std::vector<Target> config_targets() {
  return {{"config", "config.json", &Mutator::json, read_config},
          {"generation_config", "generation_config.json", &Mutator::json, read_generation},
          {"tokenizer_config", "tokenizer_config.json", &Mutator::json, read_tokenizer_config}};
}

}  // namespace shardwise::fuzz

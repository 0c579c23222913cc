// generation_config.json: a model's default generation parameters.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/infer/sampler.h"
#include "shardwise/infer/token_rules.h"

namespace shardwise::infer {

/// The default generation parameters of a model.
struct GenerationConfig {
  /// temperature is 0 without do_sample; top_k defaults to 50 with do_sample, as in transformers.
  Sampling sampling;
  TokenRules rules;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;      // of prompt and generated tokens, if max_new_tokens is not set
  std::vector<std::string> stop_strings;  // generation stops before any of them
  std::vector<int64_t> eos_token_ids;     // empty: config.json's
  std::vector<std::string> unsupported;  // fields that would change the tokens in transformers: "num_beams 4"
};

/// Reads the file in `directory`; returns the defaults if there is none. Throws c10::ValueError naming the
/// file, field and value.
GenerationConfig read_generation_config(const std::string& directory);

/// Logs a warning that names the unsupported fields, if there are any.
void warn_of_unsupported_fields(const GenerationConfig& config, const std::string& command);

}  // namespace shardwise::infer

// generation_config.json: a model's default sampling parameters.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/infer/sampler.h"

namespace shardwise::infer {

/// The default generation parameters of a model.
struct GenerationConfig {
  /// temperature is 0 without do_sample; top_k defaults to 50 with do_sample, as in transformers.
  Sampling sampling;
  std::optional<int64_t> max_new_tokens;
  std::vector<int64_t> eos_token_ids;  // empty: config.json's
};

/// Reads the file in `directory`; returns the defaults if there is none. Ignores fields that do not affect
/// sampling here. Throws c10::ValueError naming the file, field and value.
GenerationConfig read_generation_config(const std::string& directory);

}  // namespace shardwise::infer

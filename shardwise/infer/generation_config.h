// generation_config.json: what a model's makers would have its texts chosen by.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/infer/sampler.h"

namespace shardwise::infer {

struct GenerationConfig {
  Sampling sampling;  // temperature 0 unless do_sample; with it top_k 50 unless said, as in transformers
  std::optional<int64_t> max_new_tokens;
  std::vector<int64_t> end_ids;  // empty: those of config.json
};

/// Of the file in `directory`; without one the defaults. Fields that say nothing about how a token is chosen
/// here are not read. Errors: c10::ValueError naming file, field and value.
GenerationConfig read_generation_config(const std::string& directory);

}  // namespace shardwise::infer

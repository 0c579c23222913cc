// The flags of `shardwise generate`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/auto_host.h"
#include "shardwise/cli/model_source.h"
#include "shardwise/cli/stage_options.h"

namespace shardwise::cli {

struct GenerateOptions {
  ModelOptions model;
  StageOptions stages;
  AutoOptions automatic;

  std::optional<std::string> prompt, prompt_file, prompt_ids, batch_file;
  std::optional<std::string> input;  // standard input, if a file is "-"; read after the flags
  bool chat = false;

  /// Returns the flag that names standard input, if one does.
  std::optional<std::string> input_flag() const;

  // Defaults come from generation_config.json.
  std::optional<int64_t> max_new_tokens, top_k;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  uint64_t seed = 0;
  int64_t num_return = 1;

  int64_t batch_size = 16, chunk = 512, speculate = 0;
  std::string kv_cache_dtype = "auto";
  bool logprobs = false, json = false;
  std::optional<std::string> profile;  // file of the Chrome trace
};

void add_flags(Flags& flags, GenerateOptions& options);
/// Checks what does not depend on the model. Errors: c10::ValueError.
void check(const GenerateOptions& options);

}  // namespace shardwise::cli

// Conversion of the flags of `shardwise generate` to generation requests.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/generate_options.h"
#include "shardwise/infer/generate.h"
#include "shardwise/infer/generation_config.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

/// A prompt, from which `num_return` sequences are generated.
struct Prompt {
  std::vector<int64_t> ids;
  std::optional<std::string> text = {};  // if the prompt was given as text
  std::optional<int64_t> max_new_tokens = {};
  std::string where = "generate";  // start of error messages
};

/// Returns the prompts as ids, in the given order. `tokenizer` may be null if no text needs one; `directory`
/// has the tokenizer's other files, such as a chat template. Errors: c10::ValueError naming the flag or line.
std::vector<Prompt> read_prompts(const GenerateOptions& options, const text::Tokenizer* tokenizer,
                                 const std::string& directory);

/// Returns `num_return` checked requests per prompt, adjacent to each other. Errors: c10::ValueError.
std::vector<infer::Request> make_requests(const std::vector<Prompt>& prompts, const GenerateOptions& options,
                                          const infer::GenerationConfig& defaults,
                                          const config::Config& config);

}  // namespace shardwise::cli

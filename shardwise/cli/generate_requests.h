// From what the flags of `shardwise generate` say to what the ranks compute.
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

/// What is to be continued, `num_return` times.
struct Prompt {
  std::vector<int64_t> ids;
  std::optional<std::string> text = {};  // where it was given as one
  std::optional<int64_t> max_new_tokens = {};
  std::string where = "generate";  // what errors begin with
};

/// Prompts in the order in which they are given, as ids. `tokenizer` may be null where none is needed.
/// Errors: c10::ValueError naming flag or line.
std::vector<Prompt> read_prompts(const GenerateOptions& options, const NamedModel& model,
                                 const text::Tokenizer* tokenizer);

/// `num_return` requests a prompt, one behind the other, checked. Errors: c10::ValueError.
std::vector<infer::Request> make_requests(const std::vector<Prompt>& prompts, const GenerateOptions& options,
                                          const infer::GenerationConfig& defaults,
                                          const model::Config& config);

}  // namespace shardwise::cli

#include "shardwise/cli/generate_options.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/cli/cache_dtype.h"
#include "shardwise/cli/profile_report.h"
#include "shardwise/infer/generate.h"

namespace shardwise::cli {

void add_flags(Flags& flags, GenerateOptions& o) {
  flags.group("Model");
  add_model_flags(flags, o.model);
  add_stage_flags(flags, o.stages, "sequences");
  add_auto_flags(flags, o.automatic, "--tp");
  flags.group("Prompt (exactly one of --prompt, --prompt-file, --prompt-ids and --batch-file is required)");
  flags.text("--prompt TEXT", o.prompt, "prompt text; an empty one is the tokenizer's BOS token");
  flags.value("--prompt-file FILE", o.prompt_file, "file with the prompt text; -: standard input");
  flags.value("--prompt-ids IDS", o.prompt_ids, "prompt as token ids: 1,2,3");
  flags.value(
      "--batch-file FILE", o.batch_file,
      "JSON lines, each with prompt, prompt_ids or messages, and optionally max_new_tokens; printed as "
      "one line of JSON each; -: standard input");
  flags.on_off("--chat", o.chat, "apply the model's chat template to the prompt as a user message");
  flags.group("Sampling (defaults are those of generation_config.json, if it has them)");
  flags.value("--max-new-tokens N", o.max_new_tokens, "maximum tokens to generate [100, or what fits]");
  flags.value("--temperature X", o.temperature, "sampling temperature; 0: greedy decoding [0]");
  flags.value("--top-k N", o.top_k,
              "sample from the N most likely tokens; 0: all; needs --temperature above 0 [0]");
  flags.value(
      "--top-p X", o.top_p,
      "sample from the smallest set of tokens with total probability X; needs --temperature above 0 [1]");
  flags.value("--min-p X", o.min_p,
              "drop tokens below X times the highest probability; needs --temperature above 0 [0]");
  flags.value("--repetition-penalty X", o.repetition_penalty,
              "above 1: make tokens of the sequence less likely [1]");
  flags.values("--stop TEXT", o.stop, "stop before any of these strings");
  flags.on_off("--ignore-eos", o.ignore_eos, "do not stop at end-of-sequence tokens");
  flags.value("--seed N", o.seed, "sampling seed [0]");
  flags.value("--num-return N", o.num_return,
              "sequences per prompt, with seeds from --seed on; above 1 needs --temperature above 0 [1]");
  flags.group("Run");
  flags.value("--batch-size N", o.batch_size, "sequences generated at once [16]");
  flags.value("--chunk N", o.chunk, "prompt tokens per forward pass [512]");
  flags.value("--kv-cache-dtype NAME", o.kv_cache_dtype, kCacheDtypeHelp);
  flags.value(
      "--speculate N", o.speculate,
      fmt::format("draft up to N tokens, at most {}, by looking up the last ones earlier in the text, "
                  "and verify them in one forward pass; the tokens are the same [0]",
                  infer::kMostDrafted));
  flags.on_off("--logprobs", o.logprobs, "with --json: print the log probability of each generated token");
  flags.value("--profile FILE", o.profile,
              "time every forward by op, layer and rank; print tables, and write a Chrome trace");
  flags.on_off("--json", o.json, "print one JSON document instead of streaming the text");
}

std::optional<std::string> GenerateOptions::input_flag() const {
  if (prompt_file == "-") return "--prompt-file";
  return batch_file == "-" ? std::optional("--batch-file") : std::nullopt;
}

void check(const GenerateOptions& o) {
  const int prompts =
      o.prompt.has_value() + o.prompt_file.has_value() + o.prompt_ids.has_value() + o.batch_file.has_value();
  TORCH_CHECK_VALUE(prompts == 1,
                    "generate: exactly one of --prompt, --prompt-file, --prompt-ids and --batch-file must be "
                    "given; got ",
                    prompts, " [SW0052]");
  TORCH_CHECK_VALUE(!o.chat || o.prompt || o.prompt_file,
                    "generate: --chat needs --prompt or --prompt-file; got ",
                    o.prompt_ids ? "--prompt-ids" : "--batch-file", " [SW0053]");
  TORCH_CHECK_VALUE(o.max_new_tokens.value_or(1) >= 1, "generate: --max-new-tokens must be at least 1; got ",
                    *o.max_new_tokens, " [SW0055]");
  TORCH_CHECK_VALUE(std::ranges::count(o.stop, "") == 0,
                    "generate: --stop must not be empty; got '' [SW0057]");
  TORCH_CHECK_VALUE(o.num_return >= 1, "generate: --num-return must be at least 1; got ", o.num_return,
                    " [SW0058]");
  TORCH_CHECK_VALUE(o.batch_size >= 1, "generate: --batch-size must be at least 1; got ", o.batch_size,
                    " [SW0059]");
  TORCH_CHECK_VALUE(o.chunk >= 1, "generate: --chunk must be at least 1; got ", o.chunk, " [SW0060]");
  TORCH_CHECK_VALUE(o.speculate >= 0 && o.speculate <= infer::kMostDrafted,
                    "generate: --speculate must be from 0 to ", infer::kMostDrafted, "; got ", o.speculate,
                    " [SW0730]");
  cache_dtype_of("generate", "--kv-cache-dtype", o.kv_cache_dtype);
  if (o.profile) check_profile_file("generate", *o.profile);
  TORCH_CHECK_VALUE(!o.logprobs || o.json,
                    "generate: --logprobs needs --json; got --logprobs alone [SW0061]");
}

}  // namespace shardwise::cli

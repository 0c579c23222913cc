#include "shardwise/cli/generate_options.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::cli {

void add_flags(Flags& flags, GenerateOptions& o) {
  flags.group("Model");
  add_model_flags(flags, o.model);
  flags.group("Prompt");
  flags.value("--prompt TEXT", o.prompt, "text to continue");
  flags.value("--prompt-file FILE", o.prompt_file, "the same from a file");
  flags.value("--prompt-ids IDS", o.prompt_ids, "the same as token ids: 1,2,3");
  flags.value("--batch-file FILE", o.batch_file,
              "JSON lines with prompt (a text), prompt_ids or messages, and max_new_tokens if wanted");
  flags.on_off("--chat", o.chat, "give the text to the model's chat template as a user's message");
  flags.group("Choice of tokens, by default as generation_config.json says");
  flags.value("--max-new-tokens N", o.max_new_tokens, "tokens to add at most [100, or what fits]");
  flags.value("--temperature X", o.temperature, "0: always the likeliest; 1: as the model says [0]");
  flags.value("--top-k N", o.top_k, "choose among the N likeliest; 0: among all [0]");
  flags.value("--top-p X", o.top_p, "choose among the fewest whose probabilities reach X [1]");
  flags.value("--min-p X", o.min_p, "leave out tokens below X times the likeliest's probability [0]");
  flags.value("--repetition-penalty X", o.repetition_penalty,
              "above 1: tokens of the text are less likely [1]");
  flags.values("--stop TEXT", o.stop, "end where one of these texts begins, without it");
  flags.on_off("--ignore-eos", o.ignore_eos, "go on after a token that ends texts");
  flags.value("--seed N", o.seed, "of the choices above temperature 0 [0]");
  flags.value("--num-return N", o.num_return,
              "continuations of each prompt, of the seeds from --seed on [1]");
  flags.group("Run");
  flags.value("--batch-size N", o.batch_size, "texts continued at once [16]");
  flags.value("--chunk N", o.chunk, "tokens of prompts read in one forward [512]");
  flags.on_off("--logprobs", o.logprobs, "with --json: the log probability of each new token");
  flags.on_off("--json", o.json, "one JSON document instead of the text as it comes");
}

void check(const GenerateOptions& o) {
  const int prompts =
      o.prompt.has_value() + o.prompt_file.has_value() + o.prompt_ids.has_value() + o.batch_file.has_value();
  TORCH_CHECK_VALUE(prompts == 1,
                    "generate: one of --prompt, --prompt-file, --prompt-ids and --batch-file gives what to "
                    "continue; got ",
                    prompts);
  TORCH_CHECK_VALUE(!o.chat || o.prompt || o.prompt_file,
                    "generate: --chat takes a text, by --prompt or --prompt-file; got ",
                    o.prompt_ids ? "--prompt-ids" : "--batch-file");
  TORCH_CHECK_VALUE(o.max_new_tokens.value_or(1) >= 1, "generate: --max-new-tokens must be at least 1; got ",
                    *o.max_new_tokens);
  TORCH_CHECK_VALUE(std::ranges::count(o.stop, "") == 0,
                    "generate: --stop takes texts that are not empty; got ''");
  TORCH_CHECK_VALUE(o.num_return >= 1, "generate: --num-return must be at least 1; got ", o.num_return);
  TORCH_CHECK_VALUE(o.batch_size >= 1, "generate: --batch-size must be at least 1; got ", o.batch_size);
  TORCH_CHECK_VALUE(o.chunk >= 1, "generate: --chunk must be at least 1; got ", o.chunk);
  TORCH_CHECK_VALUE(!o.logprobs || o.json, "generate: --logprobs go into --json; got --logprobs without");
}

}  // namespace shardwise::cli

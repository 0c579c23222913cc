#include <cmath>
#include <filesystem>
#include <fstream>

#include "shardwise/checkpoint/contents.h"
#include "shardwise/cli/generate_requests.h"
#include "shardwise/cli/train_log.h"
#include "shardwise/train/resumed_options.h"
#include "tests/fuzz/target.h"
#include "tests/support/temporary.h"

namespace shardwise::fuzz {
namespace {

/// Reads a batch for the model in the same directory, in tokens that are bytes.
void read_batch(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path();
  cli::GenerateOptions options;
  options.batch_file = path;
  const auto tokenizer = text::load_tokenizer("bytes");
  const config::Config config = config::load_config(directory);
  const std::vector<cli::Prompt> prompts = cli::read_prompts(options, tokenizer.get(), directory);
  for (const infer::Request& request : cli::make_requests(prompts, options, {}, config)) {
    hold(!request.prompt.empty() && request.max_new_tokens >= 1, "a request has tokens");
    for (const int64_t id : request.prompt)
      hold(id >= 0 && id < config.vocab_size, "prompt ids are in the vocabulary");
  }
}

/// Flags of every type.
void read_flags(const std::string& path) {
  int64_t count = 1;
  uint64_t seed = 1;
  double rate = 1;
  std::string name = "x";
  std::optional<std::string> prompt, prompt_file;
  std::vector<std::string> stops;
  bool is_on = false;
  cli::Flags flags("fuzz", "Flags of every type.");
  flags.value("--count,--number N", count, "");
  flags.value("--seed N", seed, "");
  flags.value("--rate X", rate, "");
  flags.value("--name NAME", name, "");
  flags.value("--prompt TEXT", prompt, "");
  flags.value("--prompt-file FILE", prompt_file, "");
  flags.values("--stop TEXT", stops, "");
  flags.on_off("--on,!--off", is_on, "");
  flags.alternatives({"prompt", "prompt-file"});
  hold(flags.parse({"--config", path}), "a file does not ask for help");
  hold(std::isfinite(rate) && !name.empty(), "values keep the rules of their type");
}

void read_log(const std::string& path) {
  const std::string before = test::contents(path);
  const int64_t dropped = cli::drop_steps_after(path, 2);
  hold(test::contents(path).size() <= before.size() + 1, "a log shrinks");
  hold(cli::drop_steps_after(path, 2) == 0, "no step is dropped twice");
  const bool is_cut = !before.ends_with('\n');  // its last line, which is then dropped
  hold(dropped > 0 || is_cut || test::contents(path) == before, "a log without later steps stays as it is");
}

/// Resumes a run from the checkpoint in the same directory, whose settings are the input.
void resume(const std::string& path) {
  const auto directory = std::filesystem::path(path).parent_path();
  train::TrainOptions given;
  given.text = {path};
  given.resume = directory;
  const train::ResumedOptions resumed = train::resumed_options(given, directory);
  hold(resumed.changes.empty() && !resumed.lacks_settings, "no setting changes unless it is given");
  train::validate(resumed.options);
  std::ofstream(path, std::ios::binary) << train::settings_json(resumed.options);
  hold(train::settings_json(train::resumed_options(given, directory).options) ==
           train::settings_json(resumed.options),
       "reading the written settings gives the same settings");
  given.steps = 8;
  given.freeze = {"lm_head*"};
  const std::string changes = train::resumed_options(given, directory).changes;
  hold(changes.size() < 400 && changes.find('\n') == std::string::npos, "changes are one short line");
}

}  // namespace

std::vector<Target> command_targets() {
  return {{"batch", "batch.jsonl", &Mutator::lines, read_batch},
          {"flags", "flags.json", &Mutator::json, read_flags},
          {"train_log", "log.jsonl", &Mutator::lines, read_log},
          {"training", checkpoint::kTrainingFile, &Mutator::json, resume}};
}

}  // namespace shardwise::fuzz

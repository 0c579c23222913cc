// Usage errors of train and of --config: exit code 2, one line that names the value and the rule, and no file
// written.
#include "tests/cli/bad_input.h"

#include <sys/stat.h>

#include "shardwise/text/token_file.h"
#include "tests/launch/program.h"

namespace shardwise::cli::bad_input_test {
namespace {

TEST_F(BadInput, InvalidNumbers) {
  expect_refused({{"--steps", "many"}}, {"--steps", "integer", "'many'"});
  expect_refused({{"--steps", "1e3"}}, {"--steps", "'1e3'"});
  expect_refused({{"--steps", "99999999999999999999"}}, {"--steps", "'99999999999999999999'"});
  expect_refused({{"--seq-len", "11.5"}}, {"--seq-len", "'11.5'"});
  expect_refused({{"--lr", "fast"}}, {"--lr", "number", "'fast'"});
  expect_refused({{"--lr", "nan"}}, {"--lr", "finite", "'nan'"});
  expect_refused({{"--lr", "inf"}}, {"--lr", "finite", "'inf'"});
  expect_refused({{"--seed", "-1"}}, {"--seed", "'-1'"});
  expect_refused({{"--lr", "--seed"}, {"--seed", "3"}}, {"'--seed'"});
  expect_refused({{"--lr", ""}}, {"--lr"});
}

TEST_F(BadInput, NumbersOutOfRange) {
  for (const char* flag :
       {"--seq-len", "--batch-size", "--grad-accum", "--steps", "--tp", "--dp", "--stop-after"}) {
    expect_refused({{flag, "0"}}, {flag, "at least 1", "got 0"});
    expect_refused({{flag, "-3"}}, {flag, "at least 1", "got -3"});
  }
  for (const char* flag : {"--eval-every", "--save-every", "--keep", "--warmup"}) {
    expect_refused({{flag, "-1"}}, {flag, "at least 0", "got -1"});
  }
  for (const char* flag :
       {"--dropout", "--attention-dropout", "--label-smoothing", "--val-fraction", "--beta1", "--beta2"}) {
    expect_refused({{flag, "1"}}, {flag, "[0, 1)", "got 1"});
    expect_refused({{flag, "-0.5"}}, {flag, "[0, 1)", "got -0.5"});
  }
  for (const char* seconds : {"0", "-1", "1e7"})
    expect_refused({{"--timeout", seconds}}, {"--timeout", "seconds"});
  for (const char* flag : {"--lr", "--eps"}) expect_refused({{flag, "0"}}, {flag, "above 0", "got 0"});
  for (const char* flag : {"--weight-decay", "--clip-grad", "--min-lr", "--z-loss"}) {
    expect_refused({{flag, "-1"}}, {flag, "0 or more", "got -1"});
  }
}

TEST_F(BadInput, ConflictingFlags) {
  expect_refused({{"--stop-after", "3"}}, {"--stop-after", "--steps", "3", "2"});
  expect_refused({{"--warmup", "3"}}, {"--warmup", "--steps", "3", "2"});
  expect_refused({{"--min-lr", "0.5"}, {"--lr", "0.1"}}, {"--min-lr", "--lr", "0.5", "0.1"});
  expect_refused({{"--preset", "tiny"}}, {"--preset", "--model-config"});
  expect_refused({{"--resume", "x"}, {"--init", "y"}}, {"--resume", "--init"});
  expect_refused({{"--eval-every", "1"}}, {"--eval-every", "--val-fraction"});
  Arguments arguments = training({{"--save-every", "1"}});
  arguments.erase("--save");
  expect_refused("train", arguments, {"--save-every", "--save"});
}

TEST_F(BadInput, UnknownNames) {
  expect_refused({{"--color", "red"}}, {"unknown flag --color"});
  expect_refused({{"--preset", "huge"}, {"--model-config", scratch_ / "config.json"}}, {"--preset"});
  Arguments arguments = training({{"--preset", "huge"}});
  arguments.erase("--model-config");
  expect_refused("train", arguments, {"huge", "tiny", "llama-3-8b"});
  expect_refused({{"--tokenizer", "words"}}, {"tokenizer", "words", "bytes"});
  expect_refused({{"--recompute", "some"}}, {"--recompute", "none, selective or full", "some"});
  expect_refused({{"--dtype", "fp16"}}, {"--dtype", "fp16", "bf16"});
  EXPECT_PRED2(contains, usage_error({"shardwise", "tain"}), "got tain");
  EXPECT_PRED2(contains, usage_error({"shardwise"}), "got none");
}

TEST_F(BadInput, Text) {
  Arguments arguments = training({});
  arguments.erase("--text");
  expect_refused("train", arguments, {"--text"});
  expect_refused({{"--text", scratch_ / "absent"}}, {scratch_ / "absent"});
  expect_refused({{"--text", scratch_.put("empty", "")}}, {"byte"});
  expect_refused({{"--text", scratch_.put("short", "too short")}},
                 {"at least one batch", "2 x 11 + 1", "got 9"});
  expect_refused({{"--val-fraction", "0.001"}}, {"val_fraction", "0.001"});
}

TEST_F(BadInput, MoreRanksThanQueryHeads) {
  expect_refused({{"--tp", "7"}}, {"--tp", "6 query heads", "got 7"});
  expect_refused({{"--dp", "three"}}, {"--dp", "integer", "'three'"});
  expect_refused({{"--dp", "9223372036854775807"}, {"--grad-accum", "1"}}, {"from 1 to", "ranks", "got"});
  expect_refused({{"--dp", "9223372036854775807"}, {"--tp", "3"}}, {"from 1 to", "ranks", "got"});
}

TEST_F(BadInput, ModelConfig) {
  expect_config_refused({{"hidden_size", nullptr}}, {"changed.json", "hidden_size"});
  expect_config_refused({{"num_hidden_layers", -2}}, {"num_hidden_layers", "-2"});
  expect_config_refused({{"intermediate_size", "wide"}}, {"intermediate_size", "wide"});
  expect_config_refused({{"num_key_value_heads", 4}}, {"num_key_value_heads", "4"});
  expect_config_refused({{"head_dim", 3}}, {"head_dim", "3"});
  expect_config_refused({{"vocab_size", 100}}, {"vocab_size", "256", "got 100"});
  expect_refused({{"--model-config", scratch_.put("broken.json", "{\"hidden_size\": ")}}, {"broken.json"});
  expect_refused({{"--model-config", scratch_ / "absent.json"}}, {"absent.json"});
  expect_refused({{"--seq-len", "65"}, {"--batch-size", "1"}},
                 {"--seq-len", "max_position_embeddings", "64", "65"});
}

TEST_F(BadInput, UnwritableOutputs) {
  expect_refused({{"--save", scratch_ / "text/below"}}, {"save directory", "text/below"});
  expect_refused({{"--save", "/proc/shardwise"}}, {"save directory", "/proc/shardwise"});
  expect_refused({{"--log", scratch_.path()}}, {"--log", scratch_.path()});
  expect_refused({{"--log", scratch_ / "nowhere/log"}}, {"--log", "nowhere"});
  expect_refused({{"--report", scratch_ / "nowhere/report"}}, {"--report", "nowhere"});
}

// However it is written, the directory of --save exists when the log is opened.
TEST_F(BadInput, OutputsInTheSaveDirectoryAreAccepted) {
  const std::string saved = scratch_ / "new/saved";
  const std::string relative = fs::path(saved).lexically_relative(fs::current_path());
  for (const std::string& save : {saved + "/", scratch_ / "./new/saved", relative}) {
    ::testing::internal::CaptureStderr();
    const int exit_code = run_program(
        argv_of("train", training({{"--tp", "1"}, {"--save", save}, {"--log", saved + "/log.jsonl"}})));
    const std::string errors = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, 0) << save << ": " << errors;
    EXPECT_TRUE(fs::is_regular_file(saved + "/log.jsonl"));
    fs::remove_all(scratch_ / "new");
  }
}

TEST_F(BadInput, OutputsThatAreNotRegularFiles) {
  ASSERT_EQ(::mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", scratch_ / "null");  // a link, so that a bug cannot replace /dev/null
  expect_refused({{"--log", scratch_ / "pipe"}}, {"--log", "got the pipe", scratch_ / "pipe"});
  for (const char* name : {"pipe", "null"})
    expect_refused({{"--report", scratch_ / name}}, {"--report", scratch_ / name});
  fs::create_symlink("pipe", scratch_ / "to_pipe");
  expect_refused({{"--log", scratch_ / "to_pipe"}}, {"--log", "writable file", scratch_ / "to_pipe"});
}

TEST_F(BadInput, OneFileForTwoOutputs) {
  const std::string file = scratch_ / "figures", same = scratch_ / "./figures";
  expect_refused({{"--log", file}, {"--report", same}},
                 {"--log and --report", "different files", file, same});
  scratch_.put("figures", "");
  expect_refused({{"--log", file}, {"--report", same}}, {"--log and --report", "different files"});
  fs::create_hard_link(file, scratch_ / "other");
  expect_refused({{"--log", file}, {"--report", scratch_ / "other"}},
                 {"--log and --report", "different files"});
  expect_refused({{"--report", file}, {"--profile", same}}, {"--report and --profile", "different files"});
}

TEST_F(BadInput, OutputsThatAreInputs) {
  const std::string rule = "must not overwrite an input";
  fs::create_hard_link(scratch_ / "text", scratch_ / "same");
  scratch_.put("directory/text", testing::sample_text());
  const std::string ids = scratch_ / "ids";
  text::TokenFileWriter writer(ids, /*vocab_size=*/256);
  writer.append(std::vector<int64_t>(1000, 'a'));
  writer.finish();
  for (const char* flag : {"--log", "--report", "--profile"}) {
    for (const char* name : {"text", "./text", "same", "config.json"}) {
      expect_refused({{flag, scratch_ / name}}, {flag, rule, scratch_ / name});
    }
    expect_refused({{"--text", scratch_ / "directory"}, {flag, scratch_ / "directory/new"}},
                   {flag, rule, "directory/new"});
    Arguments on_ids = training({{"--tokens", ids}, {flag, ids}});
    on_ids.erase("--text");
    expect_refused("train", on_ids, {flag, rule, ids});
  }
}

TEST_F(BadInput, OutputsInTheStartingCheckpoint) {
  const std::string good = checkpoint();
  for (const char* start : {"--init", "--resume"}) {
    for (const char* flag : {"--log", "--report", "--profile"}) {
      for (const char* file : {"good/step-2/config.json", "good/step-2/model.safetensors", "good/latest/new"})
        expect_refused({{start, good}, {"--steps", "4"}, {"--tp", "1"}, {flag, scratch_ / file}},
                       {flag, "must not overwrite an input", scratch_ / file, "good/step-2"});
    }
  }
}

TEST_F(BadInput, CheckpointsInTheStartingCheckpoint) {
  const std::string good = checkpoint(), step = scratch_ / "good/step-2";
  for (const auto& [start, directory] : {std::pair("--init", step), {"--resume", good}})
    for (const std::string& save : {step, step + "/below"})
      expect_refused({{start, directory}, {"--steps", "4"}, {"--tp", "1"}, {"--save", save}},
                     {"--save must not overwrite an input", save});
}

TEST_F(BadInput, OutputsThatSavingWrites) {
  const std::string save = scratch_ / "new";
  for (const char* flag : {"--log", "--report", "--profile"})
    for (const char* name : {"", "/latest", "/.lock", "/step-1"})
      expect_refused({{"--tp", "1"}, {"--save", save}, {flag, save + name}},
                     {flag, "must not be --save or a name that saving writes there; got " + save + name});
}

// Saving removes old steps, and replaces later ones of a save that was killed.
TEST_F(BadInput, OutputsInAStep) {
  const std::string good = checkpoint();
  scratch_.put("good/step-1/file", "");
  fs::create_symlink(scratch_ / "good/.lock", scratch_ / "link");
  for (const char* flag : {"--log", "--report", "--profile"})
    for (const char* file : {"good/step-1/new", "link"})
      expect_refused({{"--resume", good}, {"--save", good}, {"--steps", "4"}, {flag, scratch_ / file}},
                     {flag, "a name that saving writes there; got ", file});
}

TEST_F(BadInput, TakesNamesThatOnlyBeginLikeThoseOfSteps) {
  scratch_.put("saved/step-times/file", "");
  expect_success(training({{"--tp", "1"},
                           {"--log", scratch_ / "saved/step-times/log"},
                           {"--report", scratch_ / "saved/step-report.json"}}));
}

TEST_F(BadInput, CheckpointsAsTheInitialModelButNotInIt) {
  const std::string model = scratch_ / "good/model";
  checkpoint();
  fs::rename(scratch_ / "good/step-2", model);
  Arguments arguments = training({{"--init", model}, {"--tp", "1"}, {"--save", model}});
  arguments.erase("--model-config");
  expect_refused("train", arguments, {"--save must not overwrite an input", model});
  arguments["--save"] = model + "/tuned";
  expect_success(arguments);
}

TEST_F(BadInput, CheckpointsAmongTheText) {
  scratch_.put("directory/text", testing::sample_text());
  for (const char* save : {"directory", "directory/runs", "directory/new/run"})
    expect_refused({{"--text", scratch_ / "directory"}, {"--tp", "1"}, {"--save", scratch_ / save}},
                   {"--save must not overwrite an input", scratch_ / save, scratch_ / "directory"});
}

TEST_F(BadInput, ConfigFile) {
  const auto file = [&](const char* text) {
    return Arguments{{"--config", scratch_.put("flags.json", text)}};
  };
  expect_refused(file("{\"stepz\": 3}"), {"flags.json", "stepz"});
  expect_refused(file("{\"lr\": \"fast\"}"), {"--lr", "'fast'"});
  expect_refused(file("{\"lr\": [1, 2]}"), {"lr", "[1,2]"});
  expect_refused(file("{\"lr\": null}"), {"lr", "null"});
  expect_refused(file("{\"sequence_parallel\": 1}"), {"sequence_parallel", "true or false"});
  expect_refused(file("{\"tp\": 1, \"tp_size\": 2}"), {"tp"});
  expect_refused(file("{\"lr\": 1"), {"flags.json"});
  expect_refused(file("[1]"), {"flags.json", "object"});
  expect_refused({{"--config", scratch_ / "absent.json"}}, {"absent.json"});
}

TEST_F(BadInput, MessagesInALineOfABatch) {
  const std::string good = checkpoint();
  scratch_.put("good/step-2/tokenizer_config.json", "{}");
  const auto refused = [&](const std::string& line, const std::vector<std::string>& named) {
    const std::string batch = scratch_.put("batch", "{\"prompt\": \"x\"}\n" + line);
    expect_refused("generate", {{"--model", good}, {"--batch-file", batch}}, named);
  };
  refused(R"({"messages": [{"role": "user"}]})", {"batch: line 2: ", "must have a chat template"});
  scratch_.put("good/step-2/chat_template.jinja", "{{ raise_exception('no role') }}");
  refused(R"({"messages": null})", {"batch: line 2: chat template: messages must be a list; got null"});
  refused(R"({"messages": [3]})", {"batch: line 2: chat template: messages[0] must be an object; got 3"});
  refused(R"({"messages": [{"role": "user"}]})", {"batch: line 2: ", "chat_template.jinja", "no role"});
  const std::string digits(100, '7');
  refused(R"({"messages": [)" + digits + "]}", {"batch: line 2: integers must have", "got 777", "..."});
}

// Its normalizer makes the prompt more than 32 times as long.
TEST_F(BadInput, APromptInALineOfABatchThatItsTokenizerRefuses) {
  const auto replace = [](const char* pattern, const std::string& content) {
    return nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
  };
  const nlohmann::json model{
      {"type", "BPE"}, {"unk_token", "?"}, {"vocab", {{"?", 0}}}, {"merges", nlohmann::json::array()}};
  const nlohmann::json tokenizer{{"version", "1.0"},
                                 {"added_tokens", nlohmann::json::array()},
                                 {"model", model},
                                 {"normalizer", replace("a", std::string(100, 'b'))},
                                 {"decoder", replace("_", " ")}};
  const std::string good = checkpoint(), prompt(1000, 'a');
  scratch_.put("good/step-2/tokenizer.json", tokenizer.dump());
  const std::string batch = scratch_.put("batch", nlohmann::json{{"prompt", prompt}}.dump());
  expect_refused("generate", {{"--model", good}, {"--batch-file", batch}},
                 {"batch: line 1: tokenizer: ", "1000 bytes to at most 97536"});
}

TEST_F(BadInput, OfARepeatedFlagTheLastCounts) {
  const auto before = listing(scratch_);
  EXPECT_PRED2(contains, usage_error({"shardwise", "train", "--lr", "1e-3", "--lr", "fast"}),
               "--lr must be a finite number; got 'fast'");
  const std::string other =
      usage_error({"shardwise", "train", "--tp", "many", "--lr", "fast", "--tp", "1", "--lr", "1e-3"});
  EXPECT_PRED2(contains, other, "--text");  // which is missing
  EXPECT_EQ(listing(scratch_), before);
}

TEST_F(BadInput, Environment) {
  setenv("SHARDWISE_THREADS", "many", /*overwrite=*/1);
  expect_refused({}, {"SHARDWISE_THREADS", "'many'"});
  setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);
  setenv("SHARDWISE_RANK", "0", /*overwrite=*/1);
  setenv("SHARDWISE_WORLD_SIZE", "1", /*overwrite=*/1);
  setenv("SHARDWISE_JOB", "job", /*overwrite=*/1);
  expect_refused({{"--save", scratch_ / "new/directory"}}, {"got 1", "degrees of 2"});
  for (const char* name : {"SHARDWISE_RANK", "SHARDWISE_WORLD_SIZE", "SHARDWISE_JOB"}) unsetenv(name);
  setenv("SHARDWISE_NODES", "2", /*overwrite=*/1);
  expect_refused({}, {"multi-node", "mpirun", "got 2 ranks", "2 nodes"});
  unsetenv("SHARDWISE_NODES");
}

TEST_F(BadInput, CheckpointToResume) {
  const std::string good = checkpoint();
  expect_refused({{"--resume", scratch_ / "absent"}}, {"absent"});
  expect_refused({{"--resume", good}}, {"resumed checkpoint's step", "got 2"});
  expect_refused({{"--save", good}}, {"step-2", "--resume"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--dtype", "bf16"}}, {"--dtype", "float32", "bf16"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--seed", "1"}},
                 {"--seed must be the resumed checkpoint's, 0; got 1"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--seq-len", "12"}},
                 {"--seq-len must be the resumed checkpoint's, 11; got 12"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--beta2", "0.9"}},
                 {"--beta2 must be the resumed checkpoint's, 0.95; got 0.9", "--init"});
  auto config = testing::small_byte_config();
  config.intermediate_size = 38;
  const std::string other = scratch_.put("other.json", config::to_json(config));
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--model-config", other}},
                 {"checkpoint", "config.json"});
  fs::remove(good + "/step-2/optimizer.safetensors");
  expect_refused({{"--resume", good}, {"--steps", "4"}}, {"optimizer.safetensors"});
}

TEST_F(BadInput, DamagedCheckpoints) {
  const std::string good = checkpoint(), weights = good + "/step-2/model.safetensors";
  const std::string all = test::contents(weights);
  const Arguments init{{"--init", good}, {"--steps", "4"}};
  scratch_.put("good/step-2/model.safetensors", all.substr(0, all.size() - 8));
  expect_refused(init, {"model.safetensors"});
  std::string renamed = all;
  renamed.replace(renamed.find("model.norm.weight"), 10, "model.nope");
  scratch_.put("good/step-2/model.safetensors", renamed);
  expect_refused(init, {"model.norm.weight"});
  std::string reshaped = all;
  const size_t shape = reshaped.find("[259,24]");
  ASSERT_NE(shape, std::string::npos);
  reshaped.replace(shape, 8, "[24,259]");
  scratch_.put("good/step-2/model.safetensors", reshaped);
  expect_refused(init, {"model.safetensors", "259"});
  fs::remove(weights);
  expect_refused(init, {"model.safetensors"});
}

TEST_F(BadInput, ProgramPrintsTheSameLine) {
  auto argv = argv_of("train", training({{"--tp", "7"}}));
  argv[0] = SHARDWISE_PROGRAM;
  const auto before = listing(scratch_);
  testing::Program program(argv);
  EXPECT_EQ(testing::exit_code(program.wait()), 2);
  EXPECT_EQ(program.errors(), "shardwise: train: --tp must be at most the 6 query heads; got 7\n");
  EXPECT_EQ(program.output(), "");
  EXPECT_EQ(listing(scratch_), before);
}

}  // namespace
}  // namespace shardwise::cli::bad_input_test

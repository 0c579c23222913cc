// What bad input gets: exit code 2, one line that names the value and the rule, and nothing written.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/cli/program.h"
#include "shardwise/text/token_file.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::cli {
namespace {

namespace fs = std::filesystem;
using test::contains;
using testing::Scratch;

/// A command line as flag → value; a flag without value has "".
using Arguments = std::map<std::string, std::string>;

std::vector<std::string> argv_of(const std::string& command, const Arguments& arguments) {
  std::vector<std::string> argv{"shardwise", command};
  for (const auto& [flag, value] : arguments) {
    argv.push_back(flag);
    if (!value.empty()) argv.push_back(value);
  }
  return argv;
}

/// Every file and folder below `folder`, with its size.
std::set<std::string> listing(const Scratch& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    const bool is_file = entry.is_regular_file();
    names.insert(entry.path().string() + " " + std::to_string(is_file ? entry.file_size() : 0));
  }
  return names;
}

/// Runs the command in this process: what it says on standard error, with its exit code checked.
std::string complaint(const std::vector<std::string>& argv) {
  ::testing::internal::CaptureStderr();
  const int exit_code = run_program(argv);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(exit_code, 2) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_TRUE(text.starts_with("shardwise: ") && text.ends_with('\n')) << text;
  return text;
}

class BadInput : public ::testing::Test {
 protected:
  BadInput() {
    setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);  // the model is too small for more to help
    testing::small_options(scratch_);
  }

  /// A run of two steps that works, with `changes` put over it.
  Arguments training(const Arguments& changes) const {
    Arguments arguments{{"--text", scratch_ / "text"},
                        {"--model-config", scratch_ / "config.json"},
                        {"--seq-len", "11"},
                        {"--batch-size", "2"},
                        {"--steps", "2"},
                        {"--save", scratch_ / "saved"},
                        {"--tp", "2"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    return arguments;
  }

  void expect_refused(const std::string& command, const Arguments& arguments,
                      const std::vector<std::string>& named) {
    const auto before = listing(scratch_);
    const std::string text = complaint(argv_of(command, arguments));
    for (const std::string& part : named) EXPECT_PRED2(contains, text, part);
    EXPECT_EQ(listing(scratch_), before) << text;
  }
  void expect_refused(const Arguments& changes, const std::vector<std::string>& named) {
    expect_refused("train", training(changes), named);
  }

  /// The small model's config.json with some fields changed; null removes one.
  void expect_config_refused(const nlohmann::json& changes, const std::vector<std::string>& named) {
    auto config = nlohmann::json::parse(model::to_json(testing::small_byte_config()));
    config.merge_patch(changes);
    expect_refused({{"--model-config", scratch_.put("changed.json", config.dump())}}, named);
  }

  /// A checkpoint after two steps, made by one rank in this process.
  std::string checkpoint() const {
    Arguments arguments = training({{"--tp", "1"}, {"--save", scratch_ / "good"}});
    ::testing::internal::CaptureStderr();
    const int exit_code = run_program(argv_of("train", arguments));
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, 0) << text;
    return scratch_ / "good";
  }

  Scratch scratch_;
};

TEST_F(BadInput, NumbersThatAreNone) {
  expect_refused({{"--steps", "many"}}, {"--steps", "whole number", "'many'"});
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
  for (const char* flag : {"--seq-len", "--batch-size", "--grad-accum", "--steps", "--tp", "--stop-after"}) {
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

TEST_F(BadInput, FlagsAtOddsWithEachOther) {
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
  expect_refused({{"--colour", "red"}}, {"unknown flag --colour"});
  expect_refused({{"--preset", "huge"}, {"--model-config", scratch_ / "config.json"}}, {"--preset"});
  Arguments arguments = training({{"--preset", "huge"}});
  arguments.erase("--model-config");
  expect_refused("train", arguments, {"huge", "tiny", "llama-3-8b"});
  expect_refused({{"--tokenizer", "words"}}, {"tokenizer", "words", "bytes"});
  expect_refused({{"--recompute", "some"}}, {"--recompute", "none, selective or full", "some"});
  expect_refused({{"--dtype", "fp16"}}, {"--dtype", "fp16", "bf16"});
  EXPECT_PRED2(contains, complaint({"shardwise", "tain"}), "got tain");
  EXPECT_PRED2(contains, complaint({"shardwise"}), "got none");
  EXPECT_PRED2(contains, complaint({"shardwise", "train", "--lr", "1", "--lr", "2"}), "--lr");
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

TEST_F(BadInput, RanksBeyondTheHeads) {
  expect_refused({{"--tp", "7"}}, {"--tp", "6 query heads", "got 7"});
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

TEST_F(BadInput, PlacesThatCannotBeWritten) {
  expect_refused({{"--save", scratch_ / "text/below"}}, {"save folder", "text/below"});
  expect_refused({{"--save", "/proc/shardwise"}}, {"save folder", "/proc/shardwise"});
  expect_refused({{"--log", scratch_.path()}}, {"--log", scratch_.path()});
  expect_refused({{"--log", scratch_ / "nowhere/log"}}, {"--log", "nowhere"});
  expect_refused({{"--report", scratch_ / "nowhere/report"}}, {"--report", "nowhere"});
}

TEST_F(BadInput, PlacesThatAreNoFiles) {
  ASSERT_EQ(::mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", scratch_ / "null");  // a link, lest an error costs the machine its own
  expect_refused({{"--log", scratch_ / "pipe"}}, {"--log", "got the pipe", scratch_ / "pipe"});
  for (const char* name : {"pipe", "null"})
    expect_refused({{"--report", scratch_ / name}}, {"--report", scratch_ / name});
  fs::create_symlink("pipe", scratch_ / "to_pipe");
  expect_refused({{"--log", scratch_ / "to_pipe"}}, {"--log", "can be written", scratch_ / "to_pipe"});
}

TEST_F(BadInput, OneFileForTwoThings) {
  const std::string file = scratch_ / "figures", same = scratch_ / "./figures";
  expect_refused({{"--log", file}, {"--report", same}}, {"--log and --report", "two files", file, same});
  scratch_.put("figures", "");
  expect_refused({{"--log", file}, {"--report", same}}, {"--log and --report", "two files"});
  fs::create_hard_link(file, scratch_ / "other");
  expect_refused({{"--log", file}, {"--report", scratch_ / "other"}}, {"--log and --report", "two files"});
}

TEST_F(BadInput, OutputsThatAreInputs) {
  const std::string rule = "must not change what is read";
  fs::create_hard_link(scratch_ / "text", scratch_ / "same");
  scratch_.put("folder/text", testing::sample_text());
  const std::string ids = scratch_ / "ids";
  text::TokenFileWriter writer(ids, /*vocab_size=*/256);
  writer.append(std::vector<int64_t>(1000, 'a'));
  writer.finish();
  for (const char* flag : {"--log", "--report"}) {
    for (const char* name : {"text", "./text", "same", "config.json"}) {
      expect_refused({{flag, scratch_ / name}}, {flag, rule, scratch_ / name});
    }
    expect_refused({{"--text", scratch_ / "folder"}, {flag, scratch_ / "folder/new"}},
                   {flag, rule, "folder/new"});
    Arguments on_ids = training({{"--tokens", ids}, {flag, ids}});
    on_ids.erase("--text");
    expect_refused("train", on_ids, {flag, rule, ids});
  }
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

TEST_F(BadInput, AFlagThatStandsTwice) {
  const auto before = listing(scratch_);
  const std::string text = complaint({"shardwise", "train", "--lr", "1e-3", "--lr", "2e-3"});
  EXPECT_PRED2(contains, text, "--lr stands once; got 1e-3 and 2e-3");
  EXPECT_EQ(listing(scratch_), before);
}

TEST_F(BadInput, Environment) {
  setenv("SHARDWISE_THREADS", "many", /*overwrite=*/1);
  expect_refused({}, {"SHARDWISE_THREADS", "'many'"});
  setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);
  setenv("SHARDWISE_RANK", "0", /*overwrite=*/1);
  setenv("SHARDWISE_WORLD_SIZE", "1", /*overwrite=*/1);
  setenv("SHARDWISE_JOB", "job", /*overwrite=*/1);
  expect_refused({{"--save", scratch_ / "new/folder"}}, {"got 1", "degrees of 2"});
  for (const char* name : {"SHARDWISE_RANK", "SHARDWISE_WORLD_SIZE", "SHARDWISE_JOB"}) unsetenv(name);
  setenv("SHARDWISE_HOSTS", "2", /*overwrite=*/1);
  expect_refused({}, {"one host", "got 2 ranks", "2 hosts"});
  unsetenv("SHARDWISE_HOSTS");
}

TEST_F(BadInput, CheckpointToResume) {
  const std::string good = checkpoint();
  expect_refused({{"--resume", scratch_ / "absent"}}, {"absent"});
  expect_refused({{"--resume", good}}, {"last step", "got 2"});
  expect_refused({{"--save", good}}, {"step-2", "--resume"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--dtype", "bf16"}}, {"--dtype", "float32", "bf16"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--seed", "1"}},
                 {"--seed must be that of the resumed checkpoint, 0; got 1"});
  expect_refused({{"--resume", good}, {"--steps", "4"}, {"--seq-len", "12"}},
                 {"--seq-len must be that of the resumed checkpoint, 11; got 12"});
  auto config = testing::small_byte_config();
  config.intermediate_size = 38;
  const std::string other = scratch_.put("other.json", model::to_json(config));
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

TEST_F(BadInput, Generate) {
  const std::string good = checkpoint();
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--model", good}, {"--prompt", "line"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("generate", arguments, named);
  };
  refused({{"--model", scratch_ / "absent"}}, {"absent"});
  refused({{"--max-new-tokens", "0"}}, {"--max-new-tokens", "got 0"});
  refused({{"--max-new-tokens", "61"}}, {"max_position_embeddings", "64", "61"});
  refused({{"--temperature", "-1"}}, {"temperature", "got -1"});
  refused({{"--tp", "7"}}, {"--tp", "6 query heads", "got 7"});
  refused({{"--top-q", "0.5"}}, {"unknown flag --top-q"});
  refused({{"--top-p", "0"}, {"--temperature", "1"}}, {"top_p", "got 0"});
  refused({{"--top-p", "0.5"}}, {"--top-p", "--temperature above 0"});
  refused({{"--num-return", "2"}}, {"--num-return", "--temperature above 0"});
  refused({{"--top-k", "-1"}, {"--temperature", "1"}}, {"top_k", "got -1"});
  refused({{"--min-p", "2"}, {"--temperature", "1"}}, {"min_p", "got 2"});
  refused({{"--repetition-penalty", "0"}}, {"repetition_penalty", "got 0"});
  refused({{"--num-return", "0"}}, {"--num-return", "got 0"});
  refused({{"--batch-size", "0"}}, {"--batch-size", "got 0"});
  refused({{"--chunk", "0"}}, {"--chunk", "got 0"});
  refused({{"--dtype", "fp16"}}, {"--dtype", "auto, fp32, bf16", "got fp16"});
  refused({{"--load-format", "gguf"}}, {"--load-format", "auto, dummy", "got gguf"});
  refused({{"--logprobs", ""}}, {"--logprobs", "--json"});
  refused({{"--prompt-ids", "1"}}, {"--prompt-ids", "got 2"});
  refused({{"--chat", ""}}, {"chat_template"});
  refused({{"--tokenizer", scratch_ / "absent.json"}}, {"absent.json"});
  const auto refused_ids = [&](const std::string& ids, const std::vector<std::string>& named) {
    expect_refused("generate", {{"--model", good}, {"--prompt-ids", ids}}, named);
  };
  refused_ids("1,x", {"--prompt-ids", "'x'"});
  refused_ids("1,2,", {"--prompt-ids", "''"});
  refused_ids("1,259", {"below 259", "got 259"});
  expect_refused("generate", {{"--model", good}, {"--prompt-ids", "1"}, {"--stop", "x"}},
                 {"--stop", "tokenizer"});
  expect_refused("generate", {{"--model", good}, {"--prompt-ids", "1"}, {"--chat", ""}},
                 {"--chat", "--prompt-ids"});
  const auto refused_line = [&](const std::string& line, const std::vector<std::string>& named) {
    expect_refused("generate", {{"--model", good}, {"--batch-file", scratch_.put("batch", line)}}, named);
  };
  refused_line("", {"batch", "must hold a line"});
  refused_line("\n{\"prompt\": 3}", {"line 2: prompt", "got 3"});
  refused_line("{}", {"line 1", "prompt_ids", "got 0"});
  refused_line("{\"prompt_ids\": [1], \"prompt\": \"x\"}", {"line 1", "got 2"});
  refused_line("{\"prompt_ids\": [1], \"max_new_tokens\": 64}", {"max_position_embeddings", "64"});
  refused_line("nothing", {"line 1"});
  refused_line("{\"prompt\": \"x\", \"max_tokens\": 3}", {"line 1", "no other fields", "max_tokens"});
  refused_line("{\"prompt\": \"x\"}\n{\"prompt_ids\": [600]}", {"line 2", "below 259", "got 600"});
  scratch_.put("good/step-2/generation_config.json", "{\"top_p\": 1.5, \"do_sample\": true}");
  refused({}, {"generation_config.json: top_p", "got 1.5"});
  scratch_.put("good/step-2/generation_config.json", "{\"max_new_tokens\": -3}");
  refused({}, {"generation_config.json: max_new_tokens", "got -3"});
  scratch_.put("good/step-2/generation_config.json", "{\"eos_token_id\": \"end\"}");
  refused({}, {"generation_config.json: eos_token_id", "end"});
  fs::remove(scratch_ / "good/step-2/generation_config.json");
  expect_refused("generate", {{"--model", good}}, {"--prompt"});
  expect_refused("generate", {{"--prompt", "line"}}, {"--model"});
}

TEST_F(BadInput, Eval) {
  const std::string good = checkpoint();
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--model", good}, {"--text", scratch_ / "text"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("eval", arguments, named);
  };
  refused({{"--model", scratch_ / "absent"}}, {"absent"});
  refused({{"--text", scratch_ / "absent"}}, {"absent"});
  refused({{"--text", scratch_.put("short", "x")}}, {"--text", "two tokens"});
  refused({{"--seq-len", "65"}}, {"--seq-len", "64", "got 65"});
  refused({{"--seq-len", "0"}}, {"--seq-len", "got 0"});
  refused({{"--batch-size", "0"}}, {"--batch-size", "got 0"});
  refused({{"--tp", "0"}}, {"--tp", "got 0"});
  refused({{"--dtype", "fp64"}}, {"--dtype", "got fp64"});
  expect_refused("eval", {{"--model", good}}, {"--text"});
  expect_refused("eval", {{"--text", scratch_ / "text"}}, {"--model"});
}

TEST_F(BadInput, Tokenize) {
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--tokenizer", "bytes"}, {"--text", scratch_ / "text"}, {"--out", scratch_ / "ids"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("tokenize", arguments, named);
  };
  refused({{"--tokenizer", "words"}}, {"bytes, a folder", "got words"});
  refused({{"--tokenizer", scratch_ / "."}}, {"tokenizer.json or tokenizer.model"});
  refused({{"--tokenizer", scratch_.put("t.json", R"({"version": "1.0", "truncation": {"max_length": 3}})")}},
          {"t.json: truncation must be null", "max_length"});
  refused({{"--tokenizer", scratch_.put("t.model", "none")}}, {"t.model", "SentencePiece"});
  refused({{"--text", scratch_ / "absent"}}, {"absent"});
  refused({{"--out", scratch_ / "."}}, {"--out", "folder"});
  refused({{"--out", scratch_ / "absent/ids"}}, {"--out", "absent"});
  refused({{"--out", "/dev/null"}}, {"--out", "regular file", "/dev/null"});
  scratch_.put("in/text", "text");
  fs::create_symlink("text", scratch_ / "link");
  refused({{"--out", scratch_ / "link"}}, {"--out", "regular file", "link"});
  refused({{"--out", scratch_ / "text"}}, {"--out", "must not change what is read", "text"});
  refused({{"--text", scratch_ / "in"}, {"--out", scratch_ / "in/ids"}}, {"--out", "what is read", "in/ids"});
  scratch_.put("long", "");
  fs::resize_file(scratch_ / "long", size_t{1} << 30);  // of no blocks
  refused({{"--text", scratch_ / "long"}},
          {"long: a file must be at most 1073741823 bytes", "got 1073741824"});
  refused({{"--end-token", "<end>"}}, {"--end-token", "<end>"});
  refused({{"--lines", ""}}, {"--lines", "got 2"});
  expect_refused("tokenize", {{"--lines", ""}}, {"--tokenizer"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}}, {"--lines", "--out", "got 0"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}, {"--out", scratch_ / "ids"}}, {"--text"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}, {"--text", scratch_ / "text"}}, {"--out"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}, {"--lines", ""}, {"--json", ""}},
                 {"--json", "--out"});
}

TEST_F(BadInput, TheProgramItselfSaysTheSame) {
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
}  // namespace shardwise::cli

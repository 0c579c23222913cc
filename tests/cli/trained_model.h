// Fixture of tests of commands that read a trained model.
#pragma once
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/call.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::cli {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains;
using testing::Program;
using testing::Scratch;
using Words = std::vector<std::string>;

inline const Program::Options kOneThread{.environment = {"SHARDWISE_THREADS=1"}};

/// Seconds: a command that measures takes half a minute, and on a busy machine more than one.
inline constexpr double kRunLimit = 300;

/// Runs the command as a program and expects exit code 0.
inline Outcome run(Words argv) {
  argv.insert(argv.begin(), SHARDWISE_PROGRAM);
  Program program(argv, kOneThread);
  const int code = testing::exit_code(program.wait(kRunLimit));
  EXPECT_EQ(code, 0) << program.errors();
  return {code, program.output(), program.errors()};
}

/// Expects a usage error of one line that contains `named`, and no output.
inline void expect_refused(const Words& argv, const Words& named) {
  const Outcome result = call(argv);
  EXPECT_EQ(result.code, 2) << result.errors;
  EXPECT_EQ(result.output, "");
  EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  for (const std::string& part : named) EXPECT_PRED2(contains, result.errors, part);
}

/// A byte-level model with 6 heads after two training steps, in scratch/model.
class TrainedModel : public ::testing::Test {
 protected:
  explicit TrainedModel(const config::Config& config = testing::small_byte_config()) {
    setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);
    testing::small_options(scratch_);
    scratch_.put("config.json", config::to_json(config));
    const Outcome trained =
        call(training({"train", "--model-config", scratch_ / "config.json", "--save", model_}));
    EXPECT_EQ(trained.code, 0) << trained.errors;
  }

  /// Returns `words` with the flags of a short run on the sample text.
  Words training(Words words, const std::string& steps = "2") const {
    const Words more{
        "--text", scratch_ / "text", "--seq-len", "11", "--batch-size", "2", "--steps", steps, "--lr",
        "0.01",   "--warmup",        "0"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) names.insert(entry.path().filename());
    return names;
  }

  /// Expects a usage error of one line that contains `named`, and no new file.
  void expect_refused(const Words& argv, const Words& named) const {
    const auto before = names();
    cli::expect_refused(argv, named);
    EXPECT_EQ(names(), before);
  }

  const Scratch scratch_;
  const std::string model_ = scratch_ / "model";
};

}  // namespace shardwise::cli

// A model as `train` leaves it, and the commands that take one.
#pragma once
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/called.h"
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

/// The command as a program with ranks of its own, which must end well.
inline Said run(Words argv) {
  argv.insert(argv.begin(), SHARDWISE_PROGRAM);
  Program program(argv, kOneThread);
  const int code = testing::exit_code(program.wait(testing::kStartLimit));
  EXPECT_EQ(code, 0) << program.errors();
  return {code, program.output(), program.errors()};
}

/// A model of 6 heads that reads bytes, two steps old, in scratch/model.
class TrainedModel : public ::testing::Test {
 protected:
  explicit TrainedModel(const model::Config& config = testing::small_byte_config()) {
    setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);
    testing::small_options(scratch_);
    scratch_.put("config.json", model::to_json(config));
    const Said trained =
        call(training({"train", "--model-config", scratch_ / "config.json", "--save", model_}));
    EXPECT_EQ(trained.code, 0) << trained.errors;
  }

  /// `words`, and what a short run on the sample text is told.
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

  /// In one line that holds `named`, before anything is written.
  void expect_refused(const Words& argv, const Words& named) const {
    const auto before = names();
    const Said said = call(argv);
    EXPECT_EQ(said.code, 2) << said.errors;
    EXPECT_EQ(said.output, "");
    EXPECT_EQ(std::count(said.errors.begin(), said.errors.end(), '\n'), 1) << said.errors;
    for (const std::string& part : named) EXPECT_PRED2(contains, said.errors, part);
    EXPECT_EQ(names(), before);
  }

  const Scratch scratch_;
  const std::string model_ = scratch_ / "model";
};

}  // namespace shardwise::cli

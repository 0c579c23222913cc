// Fixture of the tests of usage errors.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "shardwise/cli/program.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::cli {

namespace fs = std::filesystem;
using test::contains;
using testing::Scratch;

/// A command line as a map from flag to value; "" for a flag without a value.
using Arguments = std::map<std::string, std::string>;

inline std::vector<std::string> argv_of(const std::string& command, const Arguments& arguments) {
  std::vector<std::string> argv{"shardwise", command};
  for (const auto& [flag, value] : arguments) {
    argv.push_back(flag);
    if (!value.empty()) argv.push_back(value);
  }
  return argv;
}

/// Returns every file and directory below `directory`, with its size.
inline std::set<std::string> listing(const Scratch& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    const bool is_file = entry.is_regular_file();
    names.insert(entry.path().string() + " " + std::to_string(is_file ? entry.file_size() : 0));
  }
  return names;
}

/// Runs the command in this process, checks that it exits with code 2 and one line that ends with a code, and
/// returns that line without the code.
inline std::string usage_error(const std::vector<std::string>& argv) {
  ::testing::internal::CaptureStderr();
  const int exit_code = run_program(argv);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(exit_code, 2) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_TRUE(std::regex_match(text, std::regex("shardwise: .* \\[SW[0-9]{4}\\]\n"))) << text;
  EXPECT_EQ(base::printable(text), text.substr(0, text.size() - 1) + "\\x0a");
  return base::without_code(text);
}

class BadInput : public ::testing::Test {
 protected:
  BadInput() {
    setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);  // the model is too small for more to help
    testing::small_options(scratch_);
  }

  /// Returns the flags of a valid run of two steps, overridden by `changes`.
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
    const std::string text = usage_error(argv_of(command, arguments));
    for (const std::string& part : named) EXPECT_PRED2(contains, text, part);
    EXPECT_EQ(listing(scratch_), before) << text;
  }
  void expect_refused(const Arguments& changes, const std::vector<std::string>& named) {
    expect_refused("train", training(changes), named);
  }

  /// Changes fields of the small model's config.json, where null removes one, and expects an error.
  void expect_config_refused(const nlohmann::json& changes, const std::vector<std::string>& named) {
    auto config = nlohmann::json::parse(config::to_json(testing::small_byte_config()));
    config.merge_patch(changes);
    expect_refused({{"--model-config", scratch_.put("changed.json", config.dump())}}, named);
  }

  /// Trains in this process.
  void expect_success(const Arguments& arguments) const {
    ::testing::internal::CaptureStderr();
    const int exit_code = run_program(argv_of("train", arguments));
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, 0) << text;
  }

  /// Trains two steps with one rank in this process and returns the checkpoint directory.
  std::string checkpoint() const {
    expect_success(training({{"--tp", "1"}, {"--save", scratch_ / "good"}}));
    return scratch_ / "good";
  }

  Scratch scratch_;
};

}  // namespace shardwise::cli

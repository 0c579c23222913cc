// Fixture of tests of `shardwise train` as a program: the small model on the sample text, for four steps.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/launch/program.h"
#include "tests/train/runs.h"

namespace shardwise::testing {

using nlohmann::json;

inline std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

/// Returns the records of the steps in a log, without the planned memory.
inline std::vector<json> steps_in(const std::string& log) {
  std::vector<json> steps;
  for (json& line : json_lines(test::contents(log)))
    if (line.contains("step")) steps.push_back(std::move(line));
  return steps;
}

/// Returns the ranks of a summary or a report by value, so that a loop may run over the result.
inline json ranks_in(const std::string& text) {
  json ranks = json::parse(text)["ranks"];
  EXPECT_FALSE(ranks.empty());
  return ranks;
}

/// The model is too small for threads to help.
inline const Program::Options kOneThread{.environment = {"SHARDWISE_THREADS=1"}};

class TrainProgram : public ::testing::Test {
 protected:
  TrainProgram() { small_options(scratch_); }

  std::vector<std::string> argv(const std::vector<std::string>& more) const {
    return training_command(scratch_, 4, more);
  }

  void expect_success(Program& program) { EXPECT_EQ(exit_code(program.wait(60)), 0) << program.errors(); }

  std::vector<double> losses_in(const std::string& log) const {
    std::vector<double> losses;
    for (const json& step : steps_in(log)) losses.push_back(step["loss"]);
    return losses;
  }

  Scratch scratch_;
};

}  // namespace shardwise::testing

// Every line about an error ends with one code, whose row in docs/errors.md has the rule of that line.
#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/cli/bad_input.h"
#include "tests/launch/program.h"

namespace shardwise::cli::error_code_test {
namespace {

using Lines = std::vector<std::string>;

/// Returns the lines of what `argv` prints about errors, with their codes.
Lines error_lines(const std::vector<std::string>& argv, const std::string& input = "") {
  testing::Program program(argv, {.input = input});
  EXPECT_NE(testing::exit_code(program.wait(testing::kStartLimit)), 0);
  std::istringstream errors(program.coded_errors());
  Lines lines;
  for (std::string line; std::getline(errors, line);) {
    if (contains(line, "shardwise: ")) lines.push_back(line);
  }
  return lines;
}

/// Returns the rule in the row of `code`; empty if docs/errors.md has no such row.
std::string rule_of(const std::string& code) {
  std::string anchor = code;
  for (char& c : anchor) c = static_cast<char>(std::tolower(c));
  const std::string begin = fmt::format("| <a id=\"{}\"></a>{} | `", anchor, code);
  std::ifstream page(SHARDWISE_SOURCE_DIR "/docs/errors.md");
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(begin)) return line.substr(begin.size(), line.find("` |") - begin.size());
  }
  return "";
}

/// Returns whether `line` has the texts of `rule` between its values ("…"), in this order.
bool follows(const std::string& line, const std::string& rule) {
  const std::string value = "…";
  size_t at = 0;
  for (size_t begin = 0; begin < rule.size();) {
    const size_t end = std::min(rule.find(value, begin), rule.size());
    at = line.find(rule.substr(begin, end - begin), at);
    if (at == std::string::npos) return false;
    begin = end + value.size();
  }
  return true;
}

void expect_one_code_with_its_row(const std::string& line) {
  std::smatch match;
  ASSERT_TRUE(std::regex_match(line, match, std::regex("(.*) \\[(SW\\d{4})\\]"))) << line;
  EXPECT_FALSE(contains(match[1], "[SW")) << line;
  const std::string rule = rule_of(match[2]);
  EXPECT_FALSE(rule.empty()) << "docs/errors.md must have a row of " << match[2];
  EXPECT_PRED2(follows, match[1], rule);
}

using ErrorCode = BadInput;

TEST_F(ErrorCode, UsageErrorsEndWithTheirCode) {
  const std::string program = SHARDWISE_PROGRAM, text = scratch_ / "text";
  const std::vector<std::vector<std::string>> commands{
      {program},                                                           // no command
      {program, "train", "--setps", "2"},                                  // an unknown flag
      {program, "train", "--steps"},                                       // a flag without a value
      {program, "train", "--text", text, "--lr", "fast"},                  // a value
      {program, "eval", "--text", text, "--model", scratch_ / "missing"},  // a checkpoint
      {program, "inspect", scratch_ / "missing"},
      {program, "chat-template", "--model", scratch_ / "missing"},
  };
  for (const auto& argv : commands) {
    const Lines lines = error_lines(argv);
    EXPECT_EQ(lines.size(), 1U) << argv.back();
    for (const std::string& line : lines) expect_one_code_with_its_row(line);
  }
}

TEST_F(ErrorCode, ALineThatQuotesAnErrorEndsWithTheCodeOfThatError) {
  const Lines lines =
      error_lines({SHARDWISE_PROGRAM, "tokenize", "--tokenizer", "bytes", "--json-lines"}, "1\n");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_PRED2(contains, lines[0], "line 1: tokenize: --json-lines needs JSON strings");
  expect_one_code_with_its_row(lines[0]);
}

TEST_F(ErrorCode, EveryRankAndTheLauncherPrintOneCode) {
  std::vector<std::string> argv = argv_of("train", training({{"--log", "/dev/full"}}));
  argv[0] = SHARDWISE_PROGRAM;
  const Lines lines = error_lines(argv);
  ASSERT_GE(lines.size(), 2U);
  for (const std::string& line : lines) expect_one_code_with_its_row(line);
  EXPECT_PRED2(contains, lines.back(), "; the job is ended");
}

// Its groups of a mesh live until it has aborted the job: else peers would report that it left one. Whether
// they notice that first depends on time, so several runs.
TEST_F(ErrorCode, PeersReportTheErrorOfARankOfAMesh) {
  std::vector<std::string> argv = argv_of(
      "train", training({{"--log", "/dev/full"}, {"--tp", "2"}, {"--dp", "2"}, {"--grad-accum", "2"}}));
  argv[0] = SHARDWISE_PROGRAM;
  for (int run = 0; run < 10; ++run) {
    const Lines lines = error_lines(argv);
    ASSERT_GE(lines.size(), 2U);
    for (size_t i = 0; i + 1 < lines.size(); ++i)
      EXPECT_PRED2(contains, lines[i], "train: --log /dev/full cannot be written");
  }
}

}  // namespace
}  // namespace shardwise::cli::error_code_test

// Inputs of a size that no memory or limit allows.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/support/small_config.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::large_input_test {
namespace {

using testing::Program;
using Words = std::vector<std::string>;

constexpr size_t kMaxJsonBytes = size_t{64} << 20;

class LargeInput : public ::testing::Test {
 protected:
  LargeInput() {
    directory_.put("config.json", config::to_json(testing::small_config()));
    directory_.put("chat_template.jinja", "{{ messages[0].content }}");
  }

  /// Expects that the program ends with this code and prints this line alone.
  static void expect_error(Program& program, int code, const std::string& line) {
    EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), code);
    EXPECT_EQ(program.coded_errors(), "shardwise: " + line + "\n");
    EXPECT_EQ(program.output(), "");
  }

  const test::TemporaryDirectory directory_;
};

TEST_F(LargeInput, OfAChatTemplateIsRefused) {
  const Words argv{SHARDWISE_PROGRAM, "chat-template", "--model", directory_.path()};
  const std::string begin = R"([{"content": "x"})", blanks(kMaxJsonBytes - begin.size() - 1, ' ');
  Program longest(argv, {.input = begin + blanks + "]"});
  EXPECT_EQ(testing::exit_code(longest.wait(testing::kStartLimit)), 0) << longest.errors();
  EXPECT_EQ(longest.output(), "x");
  Program longer(argv, {.input = begin + blanks + " ]"});
  expect_error(longer, 2, "standard input: must have at most 67108864 bytes; got more [SW0623]");
  const std::string tools = directory_.put("tools", "[");
  std::filesystem::resize_file(tools, kMaxJsonBytes + 1);
  Words with_tools = argv;
  with_tools.insert(with_tools.end(), {"--tools", tools});
  Program refused(with_tools, {.input = begin + "]"});
  expect_error(refused, 2, "read " + tools + ": must be at most 67108864 bytes; got 67108865 [SW0374]");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose address space has no such limit
// A text of the most bytes that are read, whose ids take eight times as many.
TEST_F(LargeInput, BeyondTheMemoryIsReported) {
  const std::string prompt = directory_.put("prompt", "");
  std::filesystem::resize_file(prompt, (size_t{1} << 30) - 1);
  Program program({"/bin/bash", "-c", "ulimit -v 4000000; exec \"$@\"", "bash", SHARDWISE_PROGRAM, "generate",
                   "--model", directory_.path(), "--load-format", "dummy", "--prompt-file", prompt});
  expect_error(program, 1, "out of memory; read less input at once, or free memory of this machine [SW0621]");
}
#endif

}  // namespace
}  // namespace shardwise::cli::large_input_test

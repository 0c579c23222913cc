// `shardwise tokenize` as a program: its output file, and its cleanup on a signal.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "shardwise/text/byte_level.h"
#include "shardwise/text/token_file.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::tokenize_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains;
using testing::Program;

class TokenizeCommand : public ::testing::Test {
 protected:
  std::vector<std::string> argv(const std::vector<std::string>& more) const {
    std::vector<std::string> all{SHARDWISE_PROGRAM, "tokenize", "--tokenizer", tokenizer_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Writes a tokenizer with bytes as ids 0 to 255 and <end> as 256, which its template puts before every
  /// text.
  void put_tokenizer() {
    json vocab = json::object();
    for (int byte = 0; byte < 256; ++byte) vocab[text::byte_characters()[byte]] = byte;
    const json file{
        {"version", "1.0"},
        {"added_tokens", json::array({{{"id", 256}, {"content", "<end>"}, {"special", true}}})},
        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", "<end>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
          {"special_tokens", {{"<end>", {{"id", "<end>"}, {"ids", {256}}, {"tokens", {"<end>"}}}}}}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
    tokenizer_ = directory_.put("tokenizer.json", file.dump());
  }
  std::vector<int64_t> ids() const {
    const text::TokenFile file(out_);
    std::vector<int64_t> all(file.size());
    file.read(0, all);
    return all;
  }

  test::TemporaryDirectory directory_;
  std::string tokenizer_ = "bytes", out_ = directory_ / "ids";
};

TEST_F(TokenizeCommand, CountsInvalidUtf8) {
  const std::string bad = directory_.put("texts/b", "ab\xff\xc3");
  directory_.put("texts/a", "valid");
  const auto errors = [&](const std::vector<std::string>& more, const std::string& input = "") {
    Program program(argv(more), {.input = input});
    EXPECT_EQ(testing::exit_code(program.wait()), 0) << program.errors();
    return program.errors();
  };
  const std::vector<std::string> files{"--text", directory_ / "texts", "--out", out_};
  EXPECT_EQ(errors(files), "");  // bytes are tokens
  put_tokenizer();
  const std::string warning =
      "warning: tokenize: the text should be UTF-8; got 2 other bytes, the first at offset ";
  const std::string end = "; the tokenizer replaces them by U+FFFD\n";
  EXPECT_EQ(errors(files), warning + "2 of " + bad + end);
  EXPECT_EQ(errors({"--lines"}, "valid\na\xff\n\xff\n"), warning + "1 of line 2" + end);
  EXPECT_EQ(errors({"--text", directory_ / "texts/a", "--out", out_}), "");
}

TEST_F(TokenizeCommand, WritesTheIdsOfEveryFile) {
  put_tokenizer();
  directory_.put("text/b", "long");
  directory_.put("text/a", "X");
  Program program(argv({"--text", directory_ / "text", "--out", out_, "--json"}));
  ASSERT_EQ(testing::exit_code(program.wait()), 0) << program.errors();
  EXPECT_EQ(ids(), (std::vector<int64_t>{256, 'X', 256, 'l', 'o', 'n', 'g'}));
  EXPECT_EQ(text::TokenFile(out_).text_count(), 2);
  json summary = json::parse(program.output());
  EXPECT_GT(summary["seconds"].get<double>(), 0);
  summary.erase("seconds");
  EXPECT_EQ(summary, (json{{"out", out_},
                           {"files", 2},
                           {"bytes", 5},
                           {"tokens", 7},
                           {"vocab_size", 257},
                           {"bytes_per_id", 2}}));
}

TEST_F(TokenizeCommand, AppendsTheEndTokenToEveryText) {
  put_tokenizer();
  const std::vector<std::string> flags{
      "--text", directory_.put("a", "X"), directory_.put("b", "yz"), "--out", out_, "--end-token",
      "<end>",  "--no-special-tokens"};
  Program program(argv(flags));
  ASSERT_EQ(testing::exit_code(program.wait()), 0) << program.errors();
  EXPECT_EQ(ids(), (std::vector<int64_t>{'X', 256, 'y', 'z', 256}));
  EXPECT_EQ(program.output(), "5 tokens of 2 bytes each, from 3 bytes of text in 2 files: " + out_ + "\n");
}

TEST_F(TokenizeCommand, RemovesItsFileOnASignal) {
  // Enough work that the program still runs when the signal arrives.
  std::vector<std::string> flags{"--out", out_, "--text"};
  const std::string text = directory_.put("text", std::string(size_t{8} << 20, 'a'));
  flags.insert(flags.end(), 400, text);
  Program program(argv(flags));
  const auto unfinished_exists = [&] {
    return std::ranges::any_of(
        fs::directory_iterator(directory_.path()),
        [&](const fs::directory_entry& entry) { return entry.path().string().starts_with(out_ + ".tmp"); });
  };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!unfinished_exists() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(unfinished_exists()) << program.errors();
  program.send(SIGTERM);
  EXPECT_EQ(testing::exit_code(program.wait()), 128 + SIGTERM);
  EXPECT_EQ(program.errors(), "shardwise: ended by signal 15 (Terminated)\n");
  EXPECT_FALSE(unfinished_exists());
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(TokenizeCommand, ADirectoryAsStandardInputIsAnError) {
  for (const char* command : {"tokenize --tokenizer bytes --lines", "chat-template --model "}) {
    directory_.put("chat_template.jinja", "");
    const bool is_chat = std::string(command).starts_with("chat");
    Program program({"/bin/sh", "-c",
                     "exec " SHARDWISE_PROGRAM " " + std::string(command) +
                         (is_chat ? directory_.path() : "") + " < " + directory_.path()});
    EXPECT_EQ(testing::exit_code(program.wait()), 1);
    EXPECT_PRED2(contains, program.errors(),
                 "standard input: must be readable to its end; got: Is a directory");
  }
}

}  // namespace
}  // namespace shardwise::cli::tokenize_test

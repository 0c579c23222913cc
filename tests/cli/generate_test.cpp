// `generate` as a program: streaming of text while it runs, and the reported speed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "shardwise/base/clock.h"
#include "shardwise/base/files.h"
#include "tests/launch/program.h"
#include "tests/support/temporary.h"
#include "tests/text/sentencepiece_writer.h"

namespace shardwise::cli::generate_test {
namespace {

using nlohmann::json;
using testing::Program;
using Words = std::vector<std::string>;

/// A model with bytes as tokens and random weights.
class GenerateCommand : public ::testing::Test {
 protected:
  GenerateCommand() {
    const json config{{"model_type", "llama"},    {"hidden_size", 128},
                      {"intermediate_size", 344}, {"num_hidden_layers", 4},
                      {"num_attention_heads", 4}, {"num_key_value_heads", 4},
                      {"vocab_size", 256},        {"max_position_embeddings", 50'000},
                      {"rms_norm_eps", 1e-5},     {"tie_word_embeddings", false},
                      {"hidden_act", "silu"}};
    directory_.put("config.json", config.dump());
  }

  Words argv(const Words& more) const {
    Words all{SHARDWISE_PROGRAM, "generate", "--model",     directory_.path(),
              "--load-format",   "dummy",    "--ignore-eos"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  test::TemporaryDirectory directory_;
};

const Program::Options kOneThread{.environment = {"SHARDWISE_THREADS=1"}};

/// Waits until more than `bytes` bytes are printed and returns their number.
size_t printed_beyond(const Program& program, size_t bytes) {
  size_t printed = 0;
  for (const base::Stopwatch watch; watch.seconds() < testing::kStartLimit; usleep(1000)) {
    printed = program.output().size();
    if (printed > bytes) return printed;
  }
  ADD_FAILURE() << "no more than " << printed << " bytes; standard error: " << program.errors();
  return printed;
}

/// Returns whether the program still runs, without reaping it.
bool is_running(const Program& program) {
  siginfo_t info{};
  return waitid(P_PID, program.pid(), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

// The program would run for minutes, so it still runs however late this process checks.
TEST_F(GenerateCommand, StreamsASingleSequence) {
  const std::string prompt = "line";
  for (const char* tp : {"1", "2"}) {
    for (const Words& input : {Words{"--prompt-ids", "5,6"}, Words{"--prompt", prompt}}) {
      SCOPED_TRACE(input[0] + " at tp " + tp);
      Words flags{"--max-new-tokens", "49990", "--tp", tp};
      flags.insert(flags.end(), input.begin(), input.end());
      Program program(argv(flags), kOneThread);
      const size_t first = printed_beyond(program, prompt.size());
      EXPECT_TRUE(is_running(program)) << program.errors();
      printed_beyond(program, first);
      EXPECT_TRUE(is_running(program)) << program.errors();
      program.send(SIGTERM);
      EXPECT_EQ(testing::exit_code(program.wait(60)), 128 + SIGTERM);
    }
  }
}

/// Counts the occurrences of `part` in `text`.
int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(GenerateCommand, WarnsOnceOfAnEosTokenThatTheModelDoesNotHave) {
  json config = json::parse(base::read_text(directory_ / "config.json"));
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = 50256;
  directory_.put("config.json", config.dump());
  const std::string warning =
      "warning: generate: eos_token_id in config.json should be from 0 to below vocab_size, 256; got 50256";
  for (const char* tp : {"1", "2"}) {
    SCOPED_TRACE(tp);
    Program program({SHARDWISE_PROGRAM, "generate", "--model", directory_.path(), "--load-format", "dummy",
                     "--prompt-ids", "5,6", "--max-new-tokens", "4", "--json", "--tp", tp},
                    kOneThread);
    ASSERT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
    EXPECT_EQ(occurrences(program.errors(), warning), 1) << program.errors();
    EXPECT_EQ(json::parse(program.output()).at("finish_reason"), "length");
  }
}

// Of the tokens that may follow, all are outside the tokenizer's vocabulary.
TEST_F(GenerateCommand, WarnsOnceOfTokensThatTheTokenizerDoesNotHave) {
  json config = json::parse(base::read_text(directory_ / "config.json")), bytes = json::array();
  config["vocab_size"] = 260;
  directory_.put("config.json", config.dump());
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(byte);
  directory_.put("generation_config.json", json{{"suppress_tokens", bytes}}.dump());
  for (const char* tp : {"1", "2"}) {
    SCOPED_TRACE(tp);
    Program program(argv({"--prompt", "a", "--max-new-tokens", "3", "--tp", tp}), kOneThread);
    ASSERT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
    EXPECT_EQ(occurrences(program.output(), "\ufffd"), 3) << program.output();
    EXPECT_EQ(
        occurrences(program.errors(),
                    "warning: generate: 3 tokens are outside the tokenizer's vocabulary; give --tokenizer"),
        1)
        << program.errors();
  }
}

// A chat's template belongs to its tokenizer, which may be elsewhere than the model.
TEST_F(GenerateCommand, RendersAChatWithTheTemplateOfTheTokenizer) {
  json config = json::parse(base::read_text(directory_ / "config.json"));
  const auto pieces = test::pieces_with_bytes({});
  config["vocab_size"] = pieces.size();
  directory_.put("config.json", config.dump());
  const test::TemporaryDirectory tokenizer;
  tokenizer.put("tokenizer.model",
                test::pieces_field(pieces) +
                    test::trainer_field(test::integer_field(3, 2) + test::integer_field(35, 1)));
  tokenizer.put("chat_template.jinja", "{{ messages[0].content * 2 }}");
  for (const std::string& name : {tokenizer.path(), tokenizer / "tokenizer.model"}) {
    Program program(
        argv({"--chat", "--prompt", "ab", "--max-new-tokens", "1", "--json", "--tokenizer", name}),
        kOneThread);
    ASSERT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
    // A space, which the model has as three bytes, and the text twice.
    EXPECT_EQ(json::parse(program.output()).at("prompt_ids").size(), 3u + 4) << program.output();
  }
}

// A rank that waits in vain for the others names the missing one, and not itself too.
TEST_F(GenerateCommand, NamesOnlyTheRankThatIsMissing) {
  Program program(argv({"--prompt-ids", "1", "--max-new-tokens", "2", "--tp", "2", "--timeout", "1"}),
                  {.environment = testing::torchrun_environment(1, 2, "missing")});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 1);
  EXPECT_EQ(occurrences(program.errors(), "rank 1: "), 0) << program.errors();
  EXPECT_EQ(occurrences(program.errors(), "rank 0"), 1) << program.errors();
}

TEST_F(GenerateCommand, WarnsOnceOfUnsupportedFieldsOfTheGenerationConfig) {
  directory_.put("generation_config.json", R"({"num_beams": 4, "top_k": 5, "max_time": 1.5})");
  const std::string warning =
      "warning: generate: generation_config.json should have only supported fields; got num_beams 4, "
      "max_time 1.5; tokens differ from those of transformers";
  for (const char* tp : {"1", "2"}) {
    SCOPED_TRACE(tp);
    Program program(argv({"--prompt-ids", "5,6", "--max-new-tokens", "2", "--tp", tp}), kOneThread);
    ASSERT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
    EXPECT_EQ(occurrences(program.errors(), warning), 1) << program.errors();
  }
}

// A rank that does not stop with the others would wait for them in vain.
TEST_F(GenerateCommand, StopsAtTheStopStringsOfTheGenerationConfig) {
  const auto generated = [&](const char* tp) {
    Program program(
        argv({"--prompt", "line", "--max-new-tokens", "64", "--temperature", "1", "--json", "--tp", tp}),
        kOneThread);
    EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
    return json::parse(program.output());
  };
  for (const char* tp : {"1", "2"}) {
    SCOPED_TRACE(tp);
    std::filesystem::remove(directory_ / "generation_config.json");
    const json all = generated(tp);
    EXPECT_EQ(all.at("finish_reason"), "length");
    EXPECT_EQ(all.at("token_ids").size(), 64u);
    const std::string text = all.at("text");
    const auto is_letter = [](char c) { return c > ' ' && c < '\x7f' && c != '\\' && c != '"'; };
    const auto letter = std::find_if(text.begin() + std::ssize(text) / 2, text.end(), is_letter);
    ASSERT_NE(letter, text.end()) << text;
    const size_t first = text.find(*letter);
    directory_.put("generation_config.json",
                   json{{"stop_strings", {"no such", std::string(1, *letter)}}}.dump());
    const json stopped = generated(tp);
    EXPECT_EQ(stopped.at("finish_reason"), "stop");
    EXPECT_EQ(stopped.at("text"), text.substr(0, first));
    EXPECT_LT(stopped.at("token_ids").size(), 64u);
  }
}

// A rank of torchrun needs more descriptors than this for its memory and its handle of the process, but the
// loader, which opens one library at a time, does not, once those that the tests inherited are closed. The
// undefined behavior sanitizer reads an object's type through a pipe, for which none are left.
TEST_F(GenerateCommand, NamesTheRankThatLacksDescriptors) {
  Words command{"/bin/bash", "-c",
                "for f in /proc/$$/fd/*; do f=${f##*/}; [ $f -le 2 ] || eval \"exec $f>&-\"; done; "
                "ulimit -n 5; exec \"$@\"",
                "bash"};
  for (const std::string& word : argv({"--prompt-ids", "1", "--max-new-tokens", "2", "--tp", "2"}))
    command.push_back(word);
  const std::string no_types = directory_.put("suppressions", "vptr:shardwise\n");
  Words environment = testing::torchrun_environment(1, 2, "descriptors");
  environment.push_back("UBSAN_OPTIONS=suppressions=" + no_types);
  Program program(command, {.environment = environment});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 1);
  const std::string errors = program.errors();
  EXPECT_TRUE(errors.starts_with("shardwise: rank 1: shared memory: ")) << errors;
  EXPECT_TRUE(errors.ends_with("; Too many open files\n")) << errors;
}

TEST_F(GenerateCommand, ReportsPrefillAndDecodeSpeed) {
  Program program(argv({"--max-new-tokens", "65", "--prompt-ids", "5,6,7", "--json"}), kOneThread);
  ASSERT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
  const std::string errors = program.errors();
  std::smatch found;
  const std::regex line(
      R"(generate: prefill 3 tokens in \d+\.\d+ s \(\d+\.\d/s\), decode 64 tokens in \d+\.\d+ s \((\d+\.\d)/s\)\n)");
  ASSERT_TRUE(std::regex_search(errors, found, line)) << errors;
  const json decode = json::parse(program.output()).at("decode");
  EXPECT_EQ(decode.at("tokens"), 64);  // the prefill generates the first token
  EXPECT_NEAR(std::stod(found[1]), decode.at("tokens_per_second").get<double>(), 0.051);
}

TEST_F(GenerateCommand, PrintsTheSameOverStages) {
  const auto generated = [&](const Words& more) {
    Words words{"--max-new-tokens", "9", "--prompt-ids", "5,6,7", "--num-return", "3", "--temperature", "1"};
    words.insert(words.end(), more.begin(), more.end());
    Program program(argv(words), kOneThread);
    EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
    return std::pair(program.output(), program.errors());
  };
  const std::string expected = generated({}).first;
  for (const Words& flags :
       {Words{"--pp", "2"}, {"--pp", "2", "--tp", "2"}, {"--pp", "3", "--pp-layers", "1,1,2"}}) {
    SCOPED_TRACE(::testing::PrintToString(flags));
    EXPECT_EQ(generated(flags).first, expected);
  }
  const auto [output, errors] = generated({"--pp", "2", "--tp", "2", "--json"});
  EXPECT_EQ(json::parse(output)["pp"], 2);
  EXPECT_EQ(json::parse(output)["load"]["weight_bytes"].size(), 4u);
  EXPECT_TRUE(
      errors.starts_with("generate: stage  ranks      layers\n"
                         "              0  0 to 1     embedding, 0 to 1\n"
                         "              1  2 to 3     2 to 3, last norm and head\n"))
      << errors;
}

/// Each rank is killed in turn while tokens go through the stages.
TEST_F(GenerateCommand, ALostRankOfAnyStageEndsTheJobAndIsNamed) {
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const std::string mark = "SHARDWISE_TEST_MARK=" + directory_.path() + "/" + std::to_string(rank);
    Program program(argv({"--max-new-tokens", "40000", "--prompt-ids", "5,6,7", "--pp", "2", "--tp", "2"}),
                    {.environment = {"SHARDWISE_THREADS=1", mark}});
    printed_beyond(program, 200);
    ASSERT_TRUE(testing::send_to(testing::pid_of_rank(rank, mark), SIGKILL));
    EXPECT_EQ(testing::exit_code(program.wait_within(2)), 1);
    const std::string errors = program.errors();
    EXPECT_NE(errors.find("rank " + std::to_string(rank) + " (pid "), std::string::npos) << errors;
    EXPECT_NE(errors.find("by signal 9"), std::string::npos) << errors;
    EXPECT_TRUE(testing::processes_with(mark).empty());
  }
}

}  // namespace
}  // namespace shardwise::cli::generate_test

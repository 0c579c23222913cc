// Messages are short whatever they quote: a hostile file must not fill the terminal or a log. The fuzzer
// requires the same of every reader (tests/fuzz/fuzz.cpp).
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/ordered_json.h"
#include "shardwise/config/family.h"
#include "shardwise/text/byte_level.h"
#include "shardwise/text/chat_template.h"
#include "shardwise/text/regex.h"
#include "shardwise/text/tokenizer.h"
#include "shardwise/train/overlap_choice.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/text/sentencepiece_writer.h"
#include "tests/train/runs.h"

namespace shardwise::cli::message_length_test {
namespace {

using nlohmann::json;
using test::TemporaryDirectory;

constexpr size_t kLongest = 1000;
const std::string kLong(100'000, 'x');

struct Case {
  const char* name;
  std::function<void()> read;
};

void expect_short_messages(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const std::string text = test::error_text(one.read);
    EXPECT_LE(text.size(), kLongest);
    EXPECT_PRED2(test::contains, text, "...");  // the long text, and no other error
  }
}

/// A model directory with one text per file.
using Texts = std::map<std::string, std::string>;

void load_tokenizer(const Texts& texts) {
  const TemporaryDirectory directory;
  for (const auto& [name, text] : texts) directory.put(name, text);
  text::load_tokenizer(directory.path());
}

void render(const Texts& texts) {
  const TemporaryDirectory directory;
  for (const auto& [name, text] : texts) directory.put(name, text);
  text::ChatTemplate::load(directory.path()).render({{{"role", "user"}, {"content", kLong}}});
}

/// Loads a byte-level tokenizer.json with `value` at `pointer`.
void load_changed(const char* pointer, const json& value) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[text::byte_characters()[byte]] = byte;
  json file{{"version", "1.0"},
            {"added_tokens", json::array()},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  file[json::json_pointer(pointer)] = value;
  load_tokenizer({{"tokenizer.json", file.dump()}});
}

json template_with(const std::string& id) {
  return {{"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", id}}}}, {{"Sequence", {{"id", "A"}}}}}},
          {"special_tokens", {{id, {{"id", id}, {"ids", 5}, {"tokens", {id}}}}}}};
}

/// Returns Sequences in Sequences, each after a hundred other steps.
json nested_sequences(int depth) {
  json innermost{{"type", kLong}};
  for (int i = 0; i < depth; ++i) {
    json steps(100, json{{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(std::move(innermost));
    innermost = {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  }
  return innermost;
}

void load_with_config(const json& config) {
  load_tokenizer(
      {{"tokenizer.model", test::pieces_field(test::pieces_with_bytes({})) +
                               test::trainer_field(test::integer_field(3, 2) + test::integer_field(35, 1))},
       {"tokenizer_config.json", config.dump()}});
}

TEST(Messages, OfTokenizersAreShort) {
  const json no_ids = {{"type", "TemplateProcessing"},
                       {"single", {{{"SpecialToken", {{"id", kLong}}}}}},
                       {"special_tokens", json::object()}};
  const json regex = {{"type", "Split"}, {"pattern", {{"Regex", "(" + kLong}}}, {"behavior", "Isolated"}};
  expect_short_messages({
      {"SW0160", [] { text::Regex("\\p{" + kLong + "!}", "t"); }},
      {"SW0161", [] { text::Regex("(" + kLong, "t"); }},
      {"SW0162", [] { text::Regex("(?:" + kLong + ")*", "t"); }},
      {"pattern of a file", [&] { load_changed("/pre_tokenizer", regex); }},
      {"template without ids", [&] { load_changed("/post_processor", no_ids); }},
      {"template with wrong ids", [] { load_changed("/post_processor", template_with(kLong)); }},
      {"nested sequences", [] { load_changed("/pre_tokenizer", nested_sequences(7)); }},
      {"deeply nested sequences", [] { load_changed("/pre_tokenizer", nested_sequences(48)); }},
      {"unknown field",
       [] {
         load_changed("/model", {{kLong, kLong}});
       }},
      {"id of an added token",
       [] {
         load_with_config({{"added_tokens_decoder", {{kLong, 5}}}});
       }},
      {"added token",
       [] {
         load_with_config({{"added_tokens_decoder", {{kLong, kLong}}}});
       }},
      {"special token",
       [] {
         load_with_config({{"bos_token", kLong}});
       }},
  });
}

TEST(Messages, OfChatTemplatesAreShort) {
  const auto jinja = [](const std::string& text) { render({{"chat_template.jinja", text}}); };
  const auto config = [](const json& fields) { render({{"tokenizer_config.json", fields.dump()}}); };
  expect_short_messages({
      {"raised", [&] { jinja("{{ raise_exception('x' * 100000) }}"); }},
      {"raised with the messages", [&] { jinja("{{ raise_exception(messages[0].content) }}"); }},
      {"syntax", [&] { jinja("{% " + kLong + " %}"); }},
      {"undefined", [&] { jinja("{{ " + kLong + ".y }}"); }},
      {"no text",
       [&] {
         config({{"chat_template", {{kLong, 5}}}});
       }},
      {"no default",
       [&] {
         config({{"chat_template", {{kLong, ""}}}});
       }},
      {"special token",
       [&] {
         config({{"chat_template", ""}, {"extra_special_tokens", {{kLong, 5}}}});
       }},
  });
}

/// Reads a --config file with `value` for a flag of each type.
void read_flags(const char* flag, const json& value) {
  const TemporaryDirectory directory;
  int64_t count = 1;
  uint64_t seed = 1;
  double rate = 1;
  bool is_on = false;
  std::optional<std::string> dtype;
  Flags flags("test", "Flags of every type.");
  flags.value("--count N", count, "");
  flags.value("--seed N", seed, "");
  flags.value("--rate X", rate, "");
  flags.value("--dtype NAME", dtype, "");
  flags.on_off("--on", is_on, "");
  flags.parse({"--config", directory.put("flags.json", json{{flag, value}}.dump())});
  check_choice("test", "--dtype", *dtype, {"fp32", "bf16"});
}

void parse_flags(const std::vector<std::string>& arguments) {
  int64_t count = 1;
  Flags flags("test", "One flag.");
  flags.value("--count N", count, "");
  flags.parse(arguments);
}

void validate(const std::function<void(train::TrainOptions&)>& change) {
  train::TrainOptions options;
  options.text = {"text"};
  change(options);
  train::validate(options);
}

TEST(Messages, OfFlagsAreShort) {
  const std::string lines = "x\n" + kLong;
  expect_short_messages({
      {"integer", [] { read_flags("count", kLong); }},
      {"several lines", [&] { read_flags("count", lines); }},
      {"count from 0", [] { read_flags("seed", kLong); }},
      {"number", [] { read_flags("rate", kLong); }},
      {"choice", [] { read_flags("dtype", kLong); }},
      {"switch", [] { read_flags("on", kLong); }},
      {"list", [] { read_flags("rate", {kLong}); }},
      {"unknown key", [] { read_flags(kLong.c_str(), 1); }},
      {"unknown flag", [] { parse_flags({"--" + kLong}); }},
      {"argument", [] { parse_flags({kLong}); }},
      {"preset", [] { config::preset(kLong); }},
      {"train's dtype", [] { validate([](auto& o) { o.dtype = kLong; }); }},
      {"recompute", [] { train::recompute_of(kLong); }},
      {"overlap", [] { train::OverlapChoice(kLong, /*can_overlap=*/true); }},
      {"freeze", [] { config::frozen_by("train", {kLong}, testing::small_byte_config()); }},
      {"integer in JSON", [] { parse_ordered(std::string(100'000, '1'), "t"); }},
  });
}

TEST(Messages, OfWeightsAreShort) {
  const TemporaryDirectory directory;
  const config::Config config = testing::small_byte_config();
  testing::StoredTensors tensors = testing::random_tensors(config, "F32");
  tensors[kLong] = {"F32", {1}, "1234"};
  directory.put("config.json", config::to_json(config));
  directory.put("model.safetensors", testing::safetensors_of(tensors));
  expect_short_messages({{"tensor", [&] { checkpoint::check(directory.path(), /*needs_state=*/false); }}});
}

}  // namespace
}  // namespace shardwise::cli::message_length_test

#include "shardwise/base/json.h"
#include "shardwise/base/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::base::json_test {
namespace {

using nlohmann::json;
using test::contains, test::error_text;

TEST(ParseJson, AcceptsEqualKeysInDifferentObjects) {
  const json parsed = parse_json(R"({"a": {"x": 1}, "b": [{"x": 2}, {"x": 3}], "x": 4})", "t");
  EXPECT_EQ(parsed["b"][1]["x"], 3);
  EXPECT_EQ(parsed["x"], 4);
}

TEST(ParseJson, RejectsDuplicateKeys) {
  EXPECT_EQ(error_text([] { parse_json(R"({"x": 1, "y": 2, "x": 1})", "t"); }),
            "t: \"x\" must not be duplicated; got it twice");
  EXPECT_PRED2(contains, error_text([] { parse_json(R"({"a": [{"y": {"x": 1, "x": 1}}]})", "t"); }), "\"x\"");
}

TEST(ParseJson, RejectsInvalidJson) {
  for (const char* text : {"", "{", "{\"a\": 1,}", "{'a': 1}", "{\"a\": NaN}", "{\"a\": 1e999}", "{} {}",
                           "\xff", "{\"\xff\": 1}", "{\n\"a\":\n}"}) {
    EXPECT_TRUE(error_text([&] { parse_json(text, "t"); }).starts_with("t: must be JSON")) << text;
  }
  for (const std::string& text :
       {std::string("1\0", 2), std::string("{\"a\": 1}\0 more", 14), std::string("\"\0\"", 3)})
    EXPECT_EQ(error_text([&] { parse_json(text, "t"); }), "t: must be JSON; got a NUL byte");
}

TEST(ParseJson, RejectsDeepNesting) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + "1" + std::string(depth, ']'); };
  EXPECT_EQ(parse_json(nested(100), "t").size(), 1u);
  EXPECT_EQ(error_text([&] { parse_json(nested(101), "t"); }), "t: must nest at most 100 levels; got more");
  error_text([&] { parse_json(nested(1'000'000), "t"); });  // printing this value would overflow the stack
}

TEST(ParseJson, RejectsLongTexts) {
  const std::string text = '"' + std::string(98, 'x') + '"';
  EXPECT_EQ(parse_json(text, "t", /*max_bytes=*/100).size(), 1u);
  EXPECT_EQ(error_text([&] { parse_json(text, "t", /*max_bytes=*/99); }),
            "t: JSON must have at most 99 bytes; got 100");
  const std::string blanks((64 << 20) - 1, ' ');
  EXPECT_EQ(parse_json(blanks + "1", "t"), 1);
  EXPECT_EQ(error_text([&] { parse_json(blanks + "1 ", "t"); }),
            "t: JSON must have at most 67108864 bytes; got 67108865");
}

TEST(ReadJson, RejectsLongFiles) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("sparse.json", "1");
  EXPECT_EQ(read_json(path), 1);
  std::filesystem::resize_file(path, (64 << 20) + 1);
  EXPECT_EQ(error_text([&] { read_json(path); }),
            "read " + path + ": must be at most 67108864 bytes; got 67108865");
  std::filesystem::resize_file(path, 64 << 20);
  EXPECT_PRED2(contains, error_text([&] { read_json(path); }), path + ": must be JSON");  // zeros are not
}

TEST(ParseJson, TruncatesLongErrorMessages) {
  EXPECT_LE(error_text([] { parse_json('"' + std::string(5000, 'x'), "t"); }).size(), 250u);
}

TEST(Fields, ReadsEachType) {
  const json object = json::parse(R"({"i": -3, "n": 2, "r": 0.5, "s": "x", "f": true})");
  const Fields fields(object, "t: ");
  EXPECT_EQ(fields.integer("i"), -3);
  EXPECT_EQ(fields.number("n"), 2);
  EXPECT_EQ(fields.number("r"), 0.5);
  EXPECT_EQ(fields.text("s"), "x");
  bool flag = false;
  fields.or_flag("f", flag);
  EXPECT_TRUE(flag);
}

TEST(Fields, TreatsNullAsAbsent) {
  const json object = json::parse(R"({"i": null})");
  const Fields fields(object, "t: ");
  int64_t value = 7;
  fields.or_integer("i", value);
  fields.or_integer("missing", value);
  EXPECT_EQ(value, 7);
  EXPECT_TRUE(fields.is_null("i"));
  EXPECT_FALSE(fields.is_null("missing"));
  EXPECT_EQ(error_text([&] { fields.integer("i"); }), "t: i must be given; got none");
}

TEST(Fields, RejectsOtherTypes) {
  const json object = json::parse(R"({"s": "12", "r": 2.0, "b": true, "big": 9223372036854775808, "o": {}})");
  const Fields fields(object, "t: ");
  EXPECT_EQ(error_text([&] { fields.integer("s"); }), "t: s must be an integer; got \"12\"");
  EXPECT_EQ(error_text([&] { fields.integer("r"); }), "t: r must be an integer; got 2.0");
  EXPECT_EQ(error_text([&] { fields.integer("b"); }), "t: b must be an integer; got true");
  EXPECT_EQ(error_text([&] { fields.integer("big"); }), "t: big must be below 2^63; got 9223372036854775808");
  EXPECT_EQ(error_text([&] { fields.number("s"); }), "t: s must be a number; got \"12\"");
  EXPECT_EQ(error_text([&] { fields.text("r"); }), "t: r must be a string; got 2.0");
  const json lines = {{"s", "a\nb"}}, longer = {{"s", std::string(41, 'x')}};
  EXPECT_EQ(error_text([&] { Fields(lines, "t: ").text("s"); }),
            "t: s must be at most 40 printable ASCII characters; got \"a\\nb\"");
  EXPECT_PRED2(contains, error_text([&] { Fields(longer, "t: ").text("s"); }), "at most 40 printable");
  bool flag = false;
  EXPECT_EQ(error_text([&] { fields.or_flag("o", flag); }), "t: o must be true or false; got {}");
  EXPECT_EQ(error_text([&] { Fields(object["s"], "t:"); }), "t: must be a JSON object; got \"12\"");
}

/// The same text in the obvious way: print everything, then cut.
std::string cut(const json& value) {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

TEST(Shown, BeginsAsTheWholeValue) {
  const std::string e = "\u00e9";
  for (const json& value :
       {json(nullptr), json(true), json(-1.5), json("a"), json(std::string(59, 'a')),
        json(std::string(58, 'a')), json(std::string(40, '\n')),
        json(e + e + e + e + e + e + e + e + e + e + e), json("\xff"), json(std::string(59, 'a') + e),
        json(json::array()), json(json::object()), json({1, 2, "x", {3, nullptr}}),
        json({{"key", {{"inner", "value"}}}, {"list", {1, 2, 3}}}), json(std::vector<int>(100, 7)),
        json({{std::string(100, 'k'), 1}})})
    EXPECT_EQ(shown(value), cut(value));
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  throw std::runtime_error("/proc/self/status must have VmHWM");
}

/// Returns by how much `call` raises this process' peak of resident memory.
template <typename Call>
int64_t memory_of(const Call& call) {
  std::ofstream("/proc/self/clear_refs") << 5;  // lowers the peak to what is resident now
  const int64_t before = peak_resident_bytes();
  call();
  return peak_resident_bytes() - before;
}

// Printing all of a value before the cut would take as much memory again, and time.
TEST(Shown, NeedsNoMemoryForLargeValues) {
  constexpr int64_t kBytes = 200'000'000;
  const std::string text(kBytes, 'x');
  ASSERT_GT(memory_of([&] { EXPECT_EQ(std::string(text).size(), text.size()); }), kBytes / 10 * 9);
  EXPECT_LT(memory_of([&] { EXPECT_EQ(shown(text).size(), 60u); }), kBytes / 10);
  for (const char* form : {"text", "list", "value", "key"}) {
    json value = std::string_view(form) == "key" ? json{{text, 1}} : json(text);
    if (std::string_view(form) == "list") value = json::array({std::move(value)});
    if (std::string_view(form) == "value") value = json::object({{"a", std::move(value)}});
    EXPECT_LT(memory_of([&] { EXPECT_EQ(shown(value).size(), 60u); }), kBytes / 10) << form;
  }
}

TEST(Shown, IsShortAndOnOneLine) {
  EXPECT_EQ(shown(std::string("a\nb\x01")), R"("a\nb\u0001")");
  EXPECT_EQ(shown(std::string(200, 'x')).size(), 60u);
  EXPECT_EQ(shown(std::string("\xff")), "\"\\ufffd\"");
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened(""), "");
  EXPECT_EQ(shortened("naïve\n"), "naïve\\x0a");
  const std::string x(60, 'x');
  EXPECT_EQ(shortened(x), x);
  EXPECT_EQ(shortened(x + "x"), x.substr(3) + "...");
  EXPECT_EQ(shortened(std::string(1000, 'x'), 200), std::string(197, 'x') + "...");
  // Cut between characters, wherever they begin.
  const std::string wide = "並列並列並列並列並列並列並列並列並列並列並列";
  for (const std::string begin : {"", "1", "12", "123"}) {
    const std::string text = shortened(begin + wide);
    EXPECT_EQ(text, printable(text));
    EXPECT_TRUE(text.starts_with(begin + "並列") && text.ends_with("...")) << text;
    EXPECT_LE(text.size(), 60u);
    EXPECT_GT(text.size(), 56u);
  }
  EXPECT_EQ(shortened("\xff" + x), "\\xff" + x.substr(0, 53) + "...");
  EXPECT_LE(shortened(std::string(60, '\n')).size(), 60u);
}

}  // namespace
}  // namespace shardwise::base::json_test

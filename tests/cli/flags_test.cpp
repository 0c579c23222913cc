// Values of flags that may be given several times reach the command as they were typed.
#include "shardwise/cli/flags.h"

#include <gtest/gtest.h>

#include "tests/support/temporary.h"

namespace shardwise::cli::flags_test {
namespace {

using Texts = std::vector<std::string>;

struct Parsed {
  Texts stop;
  bool json = false;
};

Parsed parse(const Texts& arguments) {
  Parsed parsed;
  Flags flags("test", "A command.");
  flags.values("--stop TEXT", parsed.stop, "texts");
  flags.on_off("--json", parsed.json, "a switch");
  EXPECT_TRUE(flags.parse(arguments));
  return parsed;
}

TEST(Flags, ValuesInBracketsAreNotSplit) {
  EXPECT_EQ(parse({"--stop", "[INST]"}).stop, (Texts{"[INST]"}));
  EXPECT_EQ(parse({"--stop=[a,b]"}).stop, (Texts{"[a,b]"}));
  EXPECT_EQ(parse({"--stop", "[a", "[[b]]", "c]"}).stop, (Texts{"[a", "[[b]]", "c]"}));
  EXPECT_EQ(parse({"--stop", "{}"}).stop, (Texts{"{}"}));
  EXPECT_EQ(parse({"--stop", "[a]", "--json", "--stop", "b"}).stop, (Texts{"[a]", "b"}));
}

TEST(Flags, AnEmptyListIsAValueAndTakesNoFurtherFlag) {
  const Parsed parsed = parse({"--stop", "[]", "--json"});
  EXPECT_EQ(parsed.stop, (Texts{"[]"}));
  EXPECT_TRUE(parsed.json);
}

TEST(Flags, ValuesInBracketsAreNotSplitInAFile) {
  const test::TemporaryDirectory directory;
  const auto of_file = [&](const std::string& text) {
    return parse({"--config", directory.put("flags.json", text)}).stop;
  };
  EXPECT_EQ(of_file(R"({"stop": ["[INST]", "[a,b]"]})"), (Texts{"[INST]", "[a,b]"}));
  EXPECT_EQ(of_file(R"({"stop": "[a,b]"})"), (Texts{"[a,b]"}));
  EXPECT_EQ(of_file(R"({"stop": ["{}"]})"), (Texts{"{}"}));
}

TEST(Flags, GivenOnesAreThoseOfTheCommandLineAndOfTheFile) {
  const test::TemporaryDirectory directory;
  const std::string file =
      directory.put("flags.json", R"({"tp": 2, "json": true, "why": false, "ranks": 4})");
  int64_t ranks = 0, tp = 0, rows = 10;
  bool json = false, why = false;
  Flags flags("test", "A command.");
  flags.value("--ranks N", ranks, "devices");
  flags.value("-t,--tp,--tensor-parallel-size N", tp, "a degree");
  flags.value("--rows N", rows, "not given");
  flags.on_off("--json", json, "a switch");
  flags.on_off("--why", why, "a switch");
  ASSERT_TRUE(flags.parse({"--ranks", "8", "--config", file, "--ranks=16"}));
  const std::vector<GivenFlag> given = flags.given();
  ASSERT_EQ(given.size(), 3u);
  EXPECT_EQ(given[0].name, "ranks");
  EXPECT_EQ(given[0].value, "16");
  EXPECT_EQ(given[1].name, "tp");
  EXPECT_EQ(given[1].value, "2");
  EXPECT_EQ(given[2].name, "json");
  EXPECT_EQ(given[2].value, std::nullopt);
}

}  // namespace
}  // namespace shardwise::cli::flags_test

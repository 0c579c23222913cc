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

}  // namespace
}  // namespace shardwise::cli::flags_test

#include "shardwise/cli/ordered_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/error_text.h"

namespace shardwise::cli::ordered_json_test {
namespace {

TEST(OrderedJson, KeepsTheOrderOfKeysAndEveryIntegerOf64Bits) {
  for (const std::string text :
       {R"({"b":[1.5,"x",null],"a":{"z":true,"y":-3}})", "-9223372036854775808", "18446744073709551615"})
    EXPECT_EQ(parse_ordered(text, "t").dump(), text);
}

TEST(OrderedJson, RejectsLargerIntegersAndOtherText) {
  for (const std::string text : {"-9223372036854775809", "[18446744073709551616]"})
    EXPECT_PRED2(test::contains, test::error_text([&] { parse_ordered(text, "t"); }),
                 "t: integers must have at most 64 bits; got ");
  EXPECT_PRED2(test::contains, test::error_text([] { parse_ordered("{", "t"); }), "t: ");
}

}  // namespace
}  // namespace shardwise::cli::ordered_json_test

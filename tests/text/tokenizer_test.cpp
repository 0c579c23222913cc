#include "shardwise/text/tokenizer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/error_text.h"

namespace shardwise::text {
namespace {

using test::contains, test::error_text;

TEST(BytesTokenizer, IdsAreBytes) {
  EXPECT_EQ(BytesTokenizer().encode("A\n"), (std::vector<int64_t>{65, 10}));
  EXPECT_EQ(BytesTokenizer().encode("\xc3\xa9"), (std::vector<int64_t>{0xc3, 0xa9}));
  EXPECT_TRUE(BytesTokenizer().encode("").empty());
}

TEST(BytesTokenizer, DecodesEveryByte) {
  std::vector<int64_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  const std::string text = BytesTokenizer().decode(ids);
  ASSERT_EQ(text.size(), 256u);
  EXPECT_EQ(text[0], '\0');
  EXPECT_EQ(text[255], '\xff');
  EXPECT_EQ(BytesTokenizer().encode(text), ids);
}

TEST(BytesTokenizer, RefusesOtherIds) {
  for (const int64_t id : {-1, 256}) {
    EXPECT_PRED2(contains, error_text([&] {
                   BytesTokenizer().decode({65, id});
                 }),
                 "got " + std::to_string(id));
  }
}

}  // namespace
}  // namespace shardwise::text

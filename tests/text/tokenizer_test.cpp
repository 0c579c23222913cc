#include "shardwise/text/tokenizer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <numeric>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::tokenizer_test {
namespace {

using test::contains, test::error_text;

TEST(BytesTokenizer, IdsAreBytes) {
  EXPECT_EQ(BytesTokenizer().encode("A\n"), (std::vector<int64_t>{65, 10}));
  EXPECT_EQ(BytesTokenizer().encode("\xc3\xa9"), (std::vector<int64_t>{0xc3, 0xa9}));
  EXPECT_TRUE(BytesTokenizer().encode("").empty());
}

TEST(BytesTokenizer, TokensAreSingleBytes) {
  EXPECT_EQ(BytesTokenizer().id_of("A"), 65);
  EXPECT_EQ(BytesTokenizer().id_of("\xc3"), 0xc3);
  EXPECT_EQ(BytesTokenizer().id_of("\xc3\xa9"), std::nullopt);
  EXPECT_EQ(BytesTokenizer().id_of(""), std::nullopt);
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

TEST(BytesTokenizer, RejectsInvalidIds) {
  for (const int64_t id : {-1, 256}) {
    EXPECT_PRED2(contains, error_text([&] {
                   BytesTokenizer().decode({65, id});
                 }),
                 "got " + std::to_string(id));
  }
}

TEST(BytesTokenizer, StreamsCompleteCharacters) {
  const BytesTokenizer tokenizer;
  const auto stream = tokenizer.stream(SpecialTokens::with);
  EXPECT_EQ(stream->push('a'), "a");
  EXPECT_EQ(stream->push(0xc3), "");
  EXPECT_EQ(stream->push(0xa9), "\u00e9");
  EXPECT_EQ(stream->push(0xff), "\ufffd");
  EXPECT_EQ(stream->push(0xc3), "");
  EXPECT_EQ(stream->finish(), "\ufffd");
}

TEST(BytesTokenizer, RejectsTextsThatAreTooLong) {
  constexpr size_t kTooLong = Tokenizer::kMaxTextBytes + 1;
  // The mapping is not accessible, so only its length may be used.
  void* map = ::mmap(nullptr, kTooLong, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_PRED2(contains, error_text([&] {
                 BytesTokenizer().encode({static_cast<char*>(map), kTooLong});
               }),
               "a text must be at most 1073741823 bytes; got 1073741824");
  ::munmap(map, kTooLong);
}

TEST(TokenizerPaths, AreTheFilesOfTheTokenizer) {
  using Paths = std::vector<std::string>;
  const test::TemporaryDirectory directory;
  const std::string config = directory / "tokenizer_config.json", added = directory / "added_tokens.json";
  EXPECT_EQ(tokenizer_paths("bytes"), Paths());
  EXPECT_EQ(tokenizer_paths(directory / "x.json"), (Paths{config, added, directory / "x.json"}));
  EXPECT_EQ(tokenizer_paths(directory.path()),
            (Paths{config, added, directory / "tokenizer.json", directory / "tokenizer.model"}));
}

}  // namespace
}  // namespace shardwise::text::tokenizer_test

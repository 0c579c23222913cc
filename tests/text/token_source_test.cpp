#include "shardwise/text/token_source.h"

#include <gtest/gtest.h>

#include "shardwise/text/token_file.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::token_source_test {
namespace {

using Ids = std::vector<int64_t>;

Ids read(const TokenSource& source, int64_t begin, int64_t count) {
  Ids ids(count);
  source.read(begin, ids);
  return ids;
}

class TokenSources : public ::testing::Test {
 protected:
  test::TemporaryDirectory directory_;
  Corpus corpus_{{directory_.put("a", "one\xff"), directory_.put("b", "two, three")}};
  Ids all_{'o', 'n', 'e', 0xff, 't', 'w', 'o', ',', ' ', 't', 'h', 'r', 'e', 'e'};
};

TEST_F(TokenSources, BytesAndEncodedBytesAreEqual) {
  const ByteTokens bytes(corpus_);
  const EncodedTokens encoded(corpus_, BytesTokenizer());
  for (const TokenSource* source :
       {static_cast<const TokenSource*>(&bytes), static_cast<const TokenSource*>(&encoded)}) {
    EXPECT_EQ(source->size(), 14);
    EXPECT_EQ(source->vocab_size(), 256);
    EXPECT_EQ(read(*source, 0, 14), all_);
    EXPECT_EQ(read(*source, 3, 5), Ids(all_.begin() + 3, all_.begin() + 8));
    EXPECT_EQ(read(*source, 14, 0), Ids());
    EXPECT_THROW(read(*source, 10, 5), c10::ValueError);
    EXPECT_THROW(read(*source, -1, 2), c10::ValueError);
  }
}

/// A bytes tokenizer whose ids start at `first`, with a BOS token.
class Shifted : public BytesTokenizer {
 public:
  explicit Shifted(int64_t first) : first_(first) {}
  int64_t vocab_size() const override { return first_ + 257; }

 private:
  void encode_checked(std::string_view text, SpecialTokens specials, Ids& ids) const override {
    if (specials == SpecialTokens::with) ids.push_back(first_ + 256);
    for (const char c : text) ids.push_back(first_ + static_cast<uint8_t>(c));
  }

  int64_t first_;
};

// Each file is encoded as a separate text.
TEST_F(TokenSources, EncodedFileByFile) {
  const EncodedTokens encoded(corpus_, Shifted(1000));
  EXPECT_EQ(encoded.vocab_size(), 1257);
  EXPECT_EQ(read(encoded, 0, 7), (Ids{1256, 1000 + 'o', 1000 + 'n', 1000 + 'e', 1255, 1256, 1000 + 't'}));
  EXPECT_EQ(encoded.size(), 16);
}

TEST_F(TokenSources, FingerprintDependsOnTheTokenizer) {
  const auto of = [this](int64_t first) { return EncodedTokens(corpus_, Shifted(first)).fingerprint(); };
  EXPECT_EQ(of(1), of(1));
  EXPECT_NE(of(1), of(2));
}

TEST_F(TokenSources, TokenFileIsATokenSource) {
  const std::string path = directory_ / "ids";
  TokenFileWriter writer(path, /*vocab_size=*/256);
  writer.append(all_);
  writer.finish();
  const TokenFile file(path);
  const TokenSource& source = file;
  EXPECT_EQ(source.size(), 14);
  EXPECT_EQ(source.vocab_size(), 256);
  EXPECT_EQ(read(source, 2, 9), Ids(all_.begin() + 2, all_.begin() + 11));
}

}  // namespace
}  // namespace shardwise::text::token_source_test

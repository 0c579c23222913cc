// Text of generated ids that the tokenizer does not have: models have more ids than tokenizers, and these
// have gaps.
#include "shardwise/cli/streaming_detokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/text/byte_level.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::streaming_detokenizer_test {
namespace {

using nlohmann::json;

/// Returns a tokenizer of the bytes, 0 to 255, and the added token 300.
std::unique_ptr<text::Tokenizer> with_a_gap() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[text::byte_characters()[byte]] = byte;
  const json file = {
      {"version", "1.0"},
      {"added_tokens", json::array({{{"id", 300}, {"content", "<end>"}, {"normalized", false}}})},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  const test::TemporaryDirectory directory;
  return text::load_tokenizer(directory.put("tokenizer.json", file.dump()));
}

TEST(StreamingDetokenizer, ReplacesIdsThatAreNoTokens) {
  const auto tokenizer = with_a_gap();
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  for (const int64_t id : {0, 255, 300}) EXPECT_TRUE(tokenizer->has(id)) << id;
  for (const int64_t id : {-1, 256, 270, 299, 301}) EXPECT_FALSE(tokenizer->has(id)) << id;
  StreamingDetokenizer detokenizer(*tokenizer, {});
  for (const int64_t id : {97, 270, 301, 300, 98}) detokenizer.push(id);
  detokenizer.finish();
  EXPECT_EQ(detokenizer.text(), "a\ufffd\ufffd<end>b");
  EXPECT_EQ(detokenizer.unknown(), 2);
}

}  // namespace
}  // namespace shardwise::cli::streaming_detokenizer_test

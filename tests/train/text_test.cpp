// The tokenizer's files that a run copies into its checkpoints.
#include "shardwise/train/text.h"

#include <gtest/gtest.h>

#include "shardwise/text/token_file.h"
#include "tests/support/temporary.h"

namespace shardwise::testing::train_text_test {
namespace {

using Files = std::map<std::string, std::string>;

TEST(TokenizerFiles, IncludeAdditionalChatTemplates) {
  const test::TemporaryDirectory directory;
  directory.put("tokenizer.json", "{}");
  directory.put("README.md", "not the tokenizer's");
  directory.put("additional_chat_templates/tool_use.jinja", "tools");
  directory.put("additional_chat_templates/notes.txt", "no template");
  EXPECT_EQ(train::tokenizer_files_in(directory.path()),
            (Files{{"tokenizer.json", "{}"}, {"additional_chat_templates/tool_use.jinja", "tools"}}));
}

// Ids outside of bytes are those of a tokenizer that the run is not told.
TEST(TokenizerFiles, OfIdsWithoutATokenizerAreAMarkerUnlessTheyAreBytes) {
  const test::TemporaryDirectory directory;
  const auto files = [&](int64_t vocab_size) {
    const std::string path = directory / ("tokens" + std::to_string(vocab_size));
    text::TokenFileWriter writer(path, vocab_size);
    writer.append(std::vector<int64_t>{1, 2, 3});
    writer.finish();
    train::TrainOptions options;
    options.tokens = path;
    return train::Text(options, std::nullopt).tokenizer_files();
  };
  EXPECT_EQ(files(text::BytesTokenizer::kVocabSize), Files{});
  EXPECT_EQ(files(300), (Files{{"unnamed_tokenizer.json", "{\"vocab_size\": 300}\n"}}));
}

}  // namespace
}  // namespace shardwise::testing::train_text_test

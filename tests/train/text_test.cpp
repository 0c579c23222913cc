// The tokenizer's files that a run copies into its checkpoints.
#include "shardwise/train/text.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shardwise::testing::train_text_test

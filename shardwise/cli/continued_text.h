// One continuation as text, as its tokens come.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/stop_strings.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

class ContinuedText {
 public:
  /// `tokenizer` outlives this.
  ContinuedText(const text::Tokenizer& tokenizer, const std::vector<std::string>& stops);

  /// What the token makes certain of the text; U+FFFD for one that the tokenizer does not have.
  std::string push(int64_t id);
  /// The rest.
  std::string finish();
  bool is_stopped() const { return stops_.is_found(); }
  /// How many tokens the tokenizer does not have.
  int64_t unknown() const { return unknown_; }
  const std::string& text() const { return text_; }

 private:
  std::string added(const std::string& text);

  int64_t vocab_size_, unknown_ = 0;
  std::unique_ptr<text::StreamDecoder> decoder_;
  text::StopStrings stops_;
  std::string text_;
};

}  // namespace shardwise::cli

// Incremental detokenization of one generated sequence.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/stop_strings.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

class StreamingDetokenizer {
 public:
  /// `tokenizer` outlives this.
  StreamingDetokenizer(const text::Tokenizer& tokenizer, const std::vector<std::string>& stops);

  /// Adds a token and returns the text that it completes; U+FFFD for an id that the tokenizer does not have.
  std::string push(int64_t id);
  /// Returns the rest of the text.
  std::string finish();
  bool is_stopped() const { return stops_.is_found(); }
  /// Returns the number of ids that the tokenizer does not have.
  int64_t unknown() const { return unknown_; }
  const std::string& text() const { return text_; }

 private:
  std::string added(const std::string& text);

  const text::Tokenizer& tokenizer_;
  int64_t unknown_ = 0;
  std::unique_ptr<text::StreamDecoder> decoder_;
  text::StopStrings stops_;
  std::string text_;
};

}  // namespace shardwise::cli

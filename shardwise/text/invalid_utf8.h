// Counts the invalid UTF-8 in texts that are encoded, so that a command can say what its tokenizer replaced.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

class InvalidUtf8 {
 public:
  /// Counts the bytes of `text` that `tokenizer` replaces when it encodes them. `where` names the text.
  void add(const Tokenizer& tokenizer, std::string_view text, const std::string& where);
  /// Logs one line, beginning with `command`, unless there are none.
  void warn(const std::string& command) const;

 private:
  int64_t bytes_ = 0, first_ = 0;  // `first_` counts from 0 in the first text that has one
  std::string first_text_;
};

}  // namespace shardwise::text

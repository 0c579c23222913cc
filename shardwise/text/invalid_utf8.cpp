#include "shardwise/text/invalid_utf8.h"

#include <fmt/format.h>

#include "shardwise/base/log.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

void InvalidUtf8::add(const Tokenizer& tokenizer, std::string_view text, const std::string& where) {
  if (!tokenizer.replaces_invalid_utf8()) return;
  const auto [bytes, first] = invalid_bytes(text);
  if (bytes_ == 0 && bytes > 0) first_ = first, first_text_ = where;
  bytes_ += bytes;
}

void InvalidUtf8::warn(const std::string& command) const {
  if (bytes_ == 0) return;
  base::log_warning(fmt::format(
      "{}: the text should be UTF-8; got {} other bytes, the first at offset {} of {}; the tokenizer "
      "replaces them by U+FFFD [SW0590]",
      command, bytes_, first_, first_text_));
}

}  // namespace shardwise::text

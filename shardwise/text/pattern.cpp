#include "shardwise/text/pattern.h"

#include <memory>

namespace shardwise::text {

Find find_regex(const std::string& pattern, const std::string& where) {
  auto regex = std::make_shared<Regex>(pattern, where);  // shared, as functions are copied
  return [regex](std::string_view text, size_t from) { return regex->find(text, from); };
}

Find find_text(const std::string& wanted) {
  return [wanted](std::string_view text, size_t from) -> std::optional<Span> {
    const size_t at = text.find(wanted, from);
    if (at == std::string_view::npos) return std::nullopt;
    return Span{at, at + wanted.size()};
  };
}

Find read_pattern(const JsonPart& step) {
  const JsonPart pattern = step.part("pattern");
  pattern.allow({"String", "Regex"});
  if (pattern.has("String") == pattern.has("Regex")) {
    refuse(step.label("pattern"), "a String or a Regex", pattern.object);
  }
  if (pattern.has("Regex")) return find_regex(pattern.text("Regex"), pattern.label("Regex"));
  const std::string wanted = pattern.text("String");
  if (wanted.empty()) refuse(pattern.label("String"), "a text that is not empty", wanted);
  return find_text(wanted);
}

}  // namespace shardwise::text

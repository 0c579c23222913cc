#include "shardwise/text/pattern.h"

#include <memory>

namespace shardwise::text {

Matcher regex_matcher(const std::string& pattern, const std::string& where) {
  auto regex = std::make_shared<Regex>(pattern, where);  // shared because std::function is copied
  return [regex](std::string_view text, size_t from) { return regex->find(text, from); };
}

Matcher string_matcher(const std::string& target) {
  return [target](std::string_view text, size_t from) -> std::optional<Span> {
    const size_t at = text.find(target, from);
    if (at == std::string_view::npos) return std::nullopt;
    return Span{at, at + target.size()};
  };
}

Matcher read_pattern(const JsonPart& step) {
  const JsonPart pattern = step.part("pattern");
  pattern.allow({"String", "Regex"});
  if (pattern.has("String") == pattern.has("Regex")) {
    throw_invalid(step.label("pattern"), "a String or a Regex", pattern.object);
  }
  if (pattern.has("Regex")) return regex_matcher(pattern.text("Regex"), pattern.label("Regex"));
  const std::string target = pattern.text("String");
  if (target.empty()) throw_invalid(pattern.label("String"), "a nonempty string", target);
  return string_matcher(target);
}

}  // namespace shardwise::text

// The patterns of tokenizer.json: a fixed string or a regular expression.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/regex.h"

namespace shardwise::text {

/// Returns the first match at or after `from`. Matches are not empty. Not thread-safe.
using Matcher = std::function<std::optional<Span>(std::string_view text, size_t from)>;

/// Returns a matcher of a regular expression. Errors: as Regex's.
Matcher regex_matcher(const std::string& pattern, const std::string& where);
/// Returns a matcher of a fixed string.
Matcher string_matcher(const std::string& target);
/// Reads the `pattern` of a step, {"String": ...} or {"Regex": ...}. Throws c10::ValueError naming the field
/// if it has neither or both or an empty string; errors of the expression as Regex's.
Matcher read_pattern(const JsonPart& step);

}  // namespace shardwise::text

// What the steps of tokenizer.json look for in a text: a fixed string, or a regular expression.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/regex.h"

namespace shardwise::text {

/// The first match at or after `from`, which is not empty. One thread at a time.
using Find = std::function<std::optional<Span>(std::string_view text, size_t from)>;

/// Errors: those of Regex.
Find find_regex(const std::string& pattern, const std::string& where);
Find find_text(const std::string& wanted);
/// The `pattern` of a step, {"String": ...} or {"Regex": ...}. Errors: c10::ValueError naming the field for
/// what is neither or both, for an empty string, and those of Regex.
Find read_pattern(const JsonPart& step);

}  // namespace shardwise::text

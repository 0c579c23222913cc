// JSON as templates must see it.
#pragma once
#include <string>

#include "shardwise/text/chat_template.h"

namespace shardwise::cli {

/// The value with its objects in the order that they are written in. Errors: c10::ValueError beginning with
/// `where`, also for whole numbers of more than 64 bits, which would become fractions.
text::OrderedJson parse_ordered(const std::string& text, const std::string& where);

}  // namespace shardwise::cli

// JSON with the order of keys kept, as chat templates need it.
#pragma once
#include <string>

#include "shardwise/base/json.h"
#include "shardwise/text/chat_template.h"

namespace shardwise::cli {

/// Parses JSON and keeps the order of the keys. Errors: c10::ValueError beginning with `where` for invalid
/// JSON, for more than base::kMaxJsonBytes, and for integers of more than 64 bits, which would become floats.
text::OrderedJson parse_ordered(const std::string& text, const std::string& where);

}  // namespace shardwise::cli

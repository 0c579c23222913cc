// The `post_processor` of tokenizer.json: the ids that stand around every text.
#pragma once
#include <cstdint>
#include <vector>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

struct Template {
  std::vector<int64_t> before, after;
};

/// Errors: c10::ValueError naming the field of a processor that is not known.
Template read_template(const JsonPart& json);

}  // namespace shardwise::text

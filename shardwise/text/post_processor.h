// The `post_processor` of tokenizer.json: the special tokens that are added around every text.
#pragma once
#include <cstdint>
#include <vector>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

/// The token ids that encoding adds before and after a text.
struct PostProcessor {
  std::vector<int64_t> before, after;
};

/// Reads a post-processor. Throws c10::ValueError naming the field if a processor is not supported.
PostProcessor read_post_processor(const JsonPart& json);

}  // namespace shardwise::text

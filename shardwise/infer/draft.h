// Drafts of the tokens to come, which one forward verifies together.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace shardwise::infer {

/// Returns `count` tokens that may follow `text`: those after the latest earlier occurrence of its last
/// tokens, of the last 4 if they occurred before, else of 3 or 2; none if not even 2 did. Where the text ends
/// they continue with themselves, so that a repeated phrase is drafted on and on. Source: Saxena 2023, prompt
/// lookup decoding. Cost: linear in the text.
std::vector<int64_t> draft_of(std::span<const int64_t> text, int64_t count);

}  // namespace shardwise::infer

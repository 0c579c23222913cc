// Words cut where a pattern matches: the Split of tokenizer.json's pre-tokenizers, and what others make of
// it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/text/pattern.h"

namespace shardwise::text {

/// Text and the words in it, in order.
struct Words {
  std::string text;
  std::vector<Span> spans;
  bool is_at_start;  // nothing of the input comes before
};

/// What becomes of a match.
enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Cuts every word; with `inverts` what lies between the matches counts as them.
std::function<void(Words&)> split_step(Find find, Behavior behavior, bool inverts);

}  // namespace shardwise::text

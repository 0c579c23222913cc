// Splits words at the matches of a pattern: the Split pre-tokenizer of tokenizer.json, which others use too.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/text/pattern.h"

namespace shardwise::text {

/// A text and the spans of its words, in order.
struct PreTokenizedString {
  std::string text;
  std::vector<Span> spans;
  bool is_at_start;  // the text is at the start of the input
};

/// The treatment of a match: a word of its own, removed, or merged with a neighbor.
enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// Returns a step that splits every word at the matches of `find`. With `invert`, the text between matches is
/// treated as the matches.
std::function<void(PreTokenizedString&)> split_step(Matcher find, Behavior behavior, bool invert);

}  // namespace shardwise::text

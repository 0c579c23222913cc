#include "shardwise/text/split.h"

#include <algorithm>
#include <utility>

namespace shardwise::text {
namespace {

struct Part {
  Span span;
  bool is_match;
};

/// Splits `word` into matches and the text between them.
void find_parts(const Matcher& find, std::string_view text, Span word, std::vector<Part>& parts) {
  parts.clear();
  const std::string_view seen = text.substr(word.begin, word.end - word.begin);
  size_t done = 0;
  while (done < seen.size()) {
    const auto match = find(seen, done);
    if (!match) break;
    if (match->begin > done) parts.push_back({{word.begin + done, word.begin + match->begin}, false});
    parts.push_back({{word.begin + match->begin, word.begin + match->end}, true});
    done = match->end;
  }
  if (done < seen.size()) parts.push_back({{word.begin + done, word.end}, false});
}

/// Merges each match that does not follow a match with the part before it, or after it if `backwards`.
void append_merged(const std::vector<Part>& parts, bool backwards, std::vector<Span>& out) {
  const size_t first = out.size();
  bool was_match = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[backwards ? parts.size() - 1 - i : i];
    if (part.is_match && !was_match && out.size() > first) {
      (backwards ? out.back().begin : out.back().end) = backwards ? part.span.begin : part.span.end;
    } else {
      out.push_back(part.span);
    }
    was_match = part.is_match;
  }
  if (backwards) std::reverse(out.begin() + static_cast<ptrdiff_t>(first), out.end());
}

/// Merges adjacent parts of the same kind.
void append_contiguous(const std::vector<Part>& parts, std::vector<Span>& out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && parts[i].is_match == parts[i - 1].is_match) {
      out.back().end = parts[i].span.end;
    } else {
      out.push_back(parts[i].span);
    }
  }
}

void append_words(const std::vector<Part>& parts, Behavior behavior, std::vector<Span>& out) {
  switch (behavior) {
    case Behavior::isolated:
      for (const Part& part : parts) out.push_back(part.span);
      return;
    case Behavior::removed:
      for (const Part& part : parts) {
        if (!part.is_match) out.push_back(part.span);
      }
      return;
    case Behavior::merged_with_previous:
      return append_merged(parts, /*backwards=*/false, out);
    case Behavior::merged_with_next:
      return append_merged(parts, /*backwards=*/true, out);
    case Behavior::contiguous:
      return append_contiguous(parts, out);
  }
}

}  // namespace

std::function<void(PreTokenizedString&)> split_step(Matcher find, Behavior behavior, bool invert) {
  return [find = std::move(find), behavior, invert, parts = std::vector<Part>(),
          out = std::vector<Span>()](PreTokenizedString& words) mutable {
    out.clear();
    for (const Span word : words.spans) {
      find_parts(find, words.text, word, parts);
      if (invert) {
        for (Part& part : parts) part.is_match = !part.is_match;
      }
      append_words(parts, behavior, out);
    }
    words.spans.swap(out);
  };
}

}  // namespace shardwise::text

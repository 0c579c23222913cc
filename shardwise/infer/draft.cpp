#include "shardwise/infer/draft.h"

#include <algorithm>
#include <optional>

namespace shardwise::infer {
namespace {

constexpr size_t kLongestMatch = 4, kShortestMatch = 2;

/// Returns the index after the latest occurrence of the last `length` tokens that ends before the text does.
std::optional<size_t> end_of_earlier(std::span<const int64_t> text, size_t length) {
  const auto last = text.last(std::min(length, text.size()));
  for (size_t end = text.size(); end-- > length;) {
    if (std::ranges::equal(text.subspan(end - length, length), last)) return end;
  }
  return std::nullopt;
}

}  // namespace

std::vector<int64_t> draft_of(std::span<const int64_t> text, int64_t count) {
  for (size_t length = kLongestMatch; count > 0 && length >= kShortestMatch; --length) {
    const std::optional<size_t> next = end_of_earlier(text, length);
    if (!next) continue;
    std::vector<int64_t> draft;
    const size_t period = text.size() - *next;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) draft.push_back(text[*next + i % period]);
    return draft;
  }
  return {};
}

}  // namespace shardwise::infer

#include "shardwise/text/stop_strings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace shardwise::text {
namespace {

/// Returns the start of the longest suffix of `text` that is a prefix of `stop`; text.size() if there is
/// none.
size_t begin_of_prefix(const std::string& text, const std::string& stop) {
  const size_t longest = std::min(text.size(), stop.size() - 1);
  for (size_t length = longest; length > 0; --length) {
    if (text.compare(text.size() - length, length, stop, 0, length) == 0) return text.size() - length;
  }
  return text.size();
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    TORCH_CHECK_VALUE(!stop.empty(), "generate: a stop string must not be empty; got none [SW0063]");
}

// The stop string that is complete first determines the end, independent of how the text is divided.
std::string StopStrings::push(const std::string& added) {
  if (is_found_) return "";
  pending_ += added;
  constexpr size_t kNotFound = std::string::npos;
  size_t certain = pending_.size();
  std::pair<size_t, size_t> first{kNotFound, kNotFound};  // end and start of the match
  for (const std::string& stop : stops_) {
    const size_t begin = pending_.find(stop);
    if (begin != kNotFound) first = std::min(first, {begin + stop.size(), begin});
    certain = std::min(certain, begin_of_prefix(pending_, stop));
  }
  is_found_ = first.first != kNotFound;
  std::string text = pending_.substr(0, is_found_ ? first.second : certain);
  pending_.erase(0, text.size());
  return text;
}

std::string StopStrings::finish() {
  return is_found_ ? "" : std::exchange(pending_, "");
}

}  // namespace shardwise::text

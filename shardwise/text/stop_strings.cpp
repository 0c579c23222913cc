#include "shardwise/text/stop_strings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace shardwise::text {
namespace {

/// Where the end of `text` begins that may grow into `stop`; text.size() where none does.
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
    TORCH_CHECK_VALUE(!stop.empty(), "generate: a stop string must hold a character; got none");
}

// Of several stops the one that is complete first counts, in whichever pieces the text comes.
std::string StopStrings::push(const std::string& added) {
  if (is_found_) return "";
  waiting_ += added;
  constexpr size_t kNowhere = std::string::npos;
  size_t certain = waiting_.size();
  std::pair<size_t, size_t> first{kNowhere, kNowhere};  // where it ends and begins
  for (const std::string& stop : stops_) {
    const size_t begin = waiting_.find(stop);
    if (begin != kNowhere) first = std::min(first, {begin + stop.size(), begin});
    certain = std::min(certain, begin_of_prefix(waiting_, stop));
  }
  is_found_ = first.first != kNowhere;
  std::string text = waiting_.substr(0, is_found_ ? first.second : certain);
  waiting_.erase(0, text.size());
  return text;
}

std::string StopStrings::finish() {
  return is_found_ ? "" : std::exchange(waiting_, "");
}

}  // namespace shardwise::text

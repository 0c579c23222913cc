#include "shardwise/launch/lines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "shardwise/base/console.h"

namespace shardwise::launch {

void print_line(const std::string& text) {
  base::Console& console = base::Console::standard_error();
  console.line(console.is_terminal() ? "\r\x1b[2K" + text : text);
}

void RankLines::forward() {
  char chunk[4096];
  while (source_) {
    const ssize_t n = read(source_.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) source_ = base::Fd();
    if (n <= 0) break;
    pending_.append(chunk, n);
  }
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    print(std::string_view(pending_).substr(begin, end - begin));
  }
  pending_.erase(0, begin);
}

void RankLines::forward_rest() {
  forward();
  if (!pending_.empty()) print(pending_);
  pending_.clear();
  source_ = base::Fd();
}

void RankLines::print(std::string_view line) {
  if (lines_left_ == 0) return;
  if (lines_left_ > 0) --lines_left_;
  print_line(fmt::format("[rank {}] {}", rank_, line));
}

}  // namespace shardwise::launch

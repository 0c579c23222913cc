#include "shardwise/cli/progress_line.h"

#include <fmt/format.h>

#include "shardwise/cli/units.h"

namespace shardwise::cli {
namespace {

std::string bytes_line(const std::string& command, int64_t done, int64_t total, const std::string& end) {
  return fmt::format("{}: {:.1f} of {:.1f} MB, {}", command, megabytes(done), megabytes(total), end);
}

}  // namespace

void ProgressLine::show(const std::string& text) {
  if (since_drawn_.seconds() >= 0.2) show_at_once(text);
}

void ProgressLine::show_at_once(const std::string& text) {
  since_drawn_.restart();
  console_.set_progress_line(text);
}

void ProgressLine::show_bytes(const std::string& command, int64_t done, int64_t total) {
  show(bytes_line(command, done, total, fmt::format("{:.0f} MB/s", megabytes(done) / clock_.seconds())));
}

void ProgressLine::show_bytes_at_once(const std::string& command, int64_t done, int64_t all,
                                      const std::string& what) {
  show_at_once(bytes_line(command, done, all, "now " + what));
}

}  // namespace shardwise::cli

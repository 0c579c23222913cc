#include "shardwise/cli/live_line.h"

#include <fmt/format.h>

#include "shardwise/cli/units.h"

namespace shardwise::cli {
namespace {

std::string bytes_line(const std::string& command, int64_t done, int64_t all, const std::string& end) {
  return fmt::format("{}: {:.1f} of {:.1f} MB, {}", command, megabytes(done), megabytes(all), end);
}

}  // namespace

void LiveLine::show(const std::string& text) {
  if (since_drawn_.seconds() >= 0.2) show_at_once(text);
}

void LiveLine::show_at_once(const std::string& text) {
  since_drawn_.restart();
  console_.set_live(text);
}

void LiveLine::show_bytes(const std::string& command, int64_t done, int64_t all) {
  show(bytes_line(command, done, all, fmt::format("{:.0f} MB/s", megabytes(done) / clock_.seconds())));
}

void LiveLine::show_bytes_at_once(const std::string& command, int64_t done, int64_t all,
                                  const std::string& what) {
  show_at_once(bytes_line(command, done, all, "now " + what));
}

}  // namespace shardwise::cli

#include "shardwise/cli/live_line.h"

#include <fmt/format.h>

namespace shardwise::cli {

void LiveLine::show(const std::string& text) {
  if (since_drawn_.seconds() >= 0.2) show_at_once(text);
}

void LiveLine::show_at_once(const std::string& text) {
  since_drawn_.restart();
  console_.set_live(text);
}

void LiveLine::show_bytes(const std::string& command, int64_t done, int64_t all) {
  const double mb = static_cast<double>(done) / 1e6;
  show(fmt::format("{}: {:.1f} of {:.1f} MB, {:.0f} MB/s", command, mb, static_cast<double>(all) / 1e6,
                   mb / clock_.seconds()));
}

}  // namespace shardwise::cli

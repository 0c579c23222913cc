// The progress line of a long command, on a terminal's standard error.
#pragma once
#include <string>

#include "shardwise/base/clock.h"
#include "shardwise/base/console.h"

namespace shardwise::cli {

/// Redraws at most five times a second and erases the line on destruction. Prints nothing if standard error
/// is not a terminal.
class ProgressLine {
 public:
  ProgressLine() = default;
  ~ProgressLine() { console_.set_progress_line(""); }
  ProgressLine(const ProgressLine&) = delete;

  void show(const std::string& text);
  /// Shows "command: 1.0 of 3.0 MB, 5 MB/s".
  void show_bytes(const std::string& command, int64_t done, int64_t total);
  /// Shows "command: 1.0 of 3.0 MB, now item" without the rate limit, for items that take long.
  void show_bytes_at_once(const std::string& command, int64_t done, int64_t total, const std::string& item);

 private:
  void show_at_once(const std::string& text);

  base::Console& console_ = base::Console::standard_error();
  base::Stopwatch clock_, since_drawn_;
};

}  // namespace shardwise::cli

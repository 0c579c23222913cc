// A terminal's live line on standard error: how far a long command is.
#pragma once
#include <string>

#include "shardwise/base/clock.h"
#include "shardwise/base/console.h"

namespace shardwise::cli {

/// Redrawn a few times a second, gone with this; nothing where standard error is no terminal.
class LiveLine {
 public:
  LiveLine() = default;
  ~LiveLine() { console_.set_live(""); }
  LiveLine(const LiveLine&) = delete;

  void show(const std::string& text);
  /// "command: 1.0 of 3.0 MB, 5 MB/s".
  void show_bytes(const std::string& command, int64_t done, int64_t all);
  /// "command: 1.0 of 3.0 MB, now what", however lately it was drawn: for what may stay there long.
  void show_bytes_at_once(const std::string& command, int64_t done, int64_t all, const std::string& what);

 private:
  void show_at_once(const std::string& text);

  base::Console& console_ = base::Console::standard_error();
  base::Stopwatch clock_, since_drawn_;
};

}  // namespace shardwise::cli

// A terminal or a redirected stream: log lines that scroll, and at most one progress line below them.
//
// log.h writes the log lines and a command its progress line. Both take one lock, so a log line never
// interleaves with the progress line.
#pragma once
#include <mutex>
#include <string>
#include <string_view>

namespace shardwise::base {

enum class Color { none, red, yellow };

/// Writes log lines and one progress line to a file descriptor.
class Console {
 public:
  explicit Console(int descriptor);
  /// Returns the console of the process's standard error.
  static Console& standard_error();

  bool is_terminal() const { return is_terminal_; }
  /// Returns the width in columns, or 80 if it is unknown.
  int width() const;

  /// Writes a line above the progress line. Uses colors only on a terminal, and only if NO_COLOR is not set.
  void line(std::string_view text, Color color = Color::none);
  /// Replaces the progress line, truncated to the terminal's width. An empty `text` removes it. Does nothing
  /// if the output is not a terminal.
  void set_progress_line(std::string_view text);
  /// Ends the progress line with a newline, so that it stays on the screen as an ordinary line.
  void finish_progress_line();

 private:
  std::string clipped_progress_line() const;
  void write(std::string_view text);

  int descriptor_;
  bool is_terminal_;
  bool has_colors_;
  std::string progress_line_;
  std::mutex mutex_;
};

}  // namespace shardwise::base

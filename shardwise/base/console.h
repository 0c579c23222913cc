// A terminal, or a file in its place: lines that scroll, and at most one live line below them.
//
// log.h writes lines to it and progress.h keeps the live line; both go through one lock, so a log line never
// lands in the middle of the bar.
#pragma once
#include <mutex>
#include <string>
#include <string_view>

namespace shardwise::base {

enum class Color { kNone, kRed, kYellow, kDim };

class Console {
 public:
  explicit Console(int descriptor);
  /// The process's standard error.
  static Console& standard_error();

  bool is_terminal() const { return is_terminal_; }
  /// Columns; 80 where nobody knows.
  int width() const;

  /// Writes a line above the live one. Colors appear on a terminal only, and not with NO_COLOR set.
  void line(std::string_view text, Color color = Color::kNone);
  /// Replaces the live line (a terminal's only; cut to its width). Empty: none.
  void set_live(std::string_view text);
  /// Turns the live line into an ordinary one.
  void keep_live();

 private:
  std::string shown_live() const;
  void write(std::string_view text);

  int descriptor_;
  bool is_terminal_;
  bool has_colors_;
  std::string live_;
  std::mutex mutex_;
};

}  // namespace shardwise::base

#include "shardwise/base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

#include "shardwise/base/environment.h"

namespace shardwise::base {
namespace {

// Escape sequences of terminals.
constexpr const char *kClearLine = "\r\x1b[2K", *kRed = "\x1b[31m", *kYellow = "\x1b[33m",
                     *kPlain = "\x1b[0m";

bool wants_colors() {
  // https://no-color.org: NO_COLOR counts if it is set and not empty. TERM=dumb supports no escape sequences.
  return env_text("NO_COLOR").value_or("").empty() && env_text("TERM") != "dumb";
}

}  // namespace

Console::Console(int descriptor)
    : descriptor_(descriptor),
      is_terminal_(::isatty(descriptor) == 1),
      has_colors_(is_terminal_ && wants_colors()) {}

Console& Console::standard_error() {
  static Console* const console = new Console(STDERR_FILENO);  // never destroyed: static destructors may log
  return *console;
}

int Console::width() const {
  winsize size{};
  const bool is_known = is_terminal_ && ::ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

void Console::line(std::string_view text, Color color) {
  const std::lock_guard lock(mutex_);
  std::string out = progress_line_.empty() ? "" : kClearLine;
  const bool is_colored = has_colors_ && color != Color::none;
  if (is_colored) out += color == Color::red ? kRed : kYellow;
  out += text;
  if (is_colored) out += kPlain;
  write(out + "\n" + clipped_progress_line());
}

void Console::set_progress_line(std::string_view text) {
  if (!is_terminal_) return;
  const std::lock_guard lock(mutex_);
  progress_line_ = text;
  write(kClearLine + clipped_progress_line());
}

void Console::finish_progress_line() {
  const std::lock_guard lock(mutex_);
  if (!progress_line_.empty()) write("\n");
  progress_line_.clear();
}

std::string Console::clipped_progress_line() const {
  // Leaves one column free: a full line would wrap, and kClearLine clears only its last row.
  return progress_line_.substr(0, width() - 1);
}

void Console::write(std::string_view text) {
  // Ignores a failed write: this stream is where errors are reported.
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor_, text.data(), text.size());
    if (done < 0 && errno != EINTR) return;
    if (done > 0) text.remove_prefix(done);
  }
}

}  // namespace shardwise::base

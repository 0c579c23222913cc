#include "shardwise/base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace shardwise::base {
namespace {

constexpr const char* kClearLine = "\r\x1b[2K";

const char* escape(Color color) {
  switch (color) {
    case Color::kRed:
      return "\x1b[31m";
    case Color::kYellow:
      return "\x1b[33m";
    case Color::kDim:
      return "\x1b[2m";
    case Color::kNone:
      break;
  }
  return "";
}

bool wants_colors() {
  // https://no-color.org: set and not empty. A dumb terminal understands no escapes.
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return !(no_color && *no_color) && !(terminal && std::string_view(terminal) == "dumb");
}

}  // namespace

Console::Console(int descriptor)
    : descriptor_(descriptor),
      is_terminal_(::isatty(descriptor) == 1),
      has_colors_(is_terminal_ && wants_colors()) {}

Console& Console::standard_error() {
  static Console* const console = new Console(STDERR_FILENO);  // outlives every static that may still log
  return *console;
}

int Console::width() const {
  winsize size{};
  const bool is_known = is_terminal_ && ::ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

void Console::line(std::string_view text, Color color) {
  const std::lock_guard lock(mutex_);
  std::string out = live_.empty() ? "" : kClearLine;
  const bool is_colored = has_colors_ && color != Color::kNone;
  if (is_colored) out += escape(color);
  out += text;
  if (is_colored) out += "\x1b[0m";
  write(out + "\n" + shown_live());
}

void Console::set_live(std::string_view text) {
  if (!is_terminal_) return;
  const std::lock_guard lock(mutex_);
  live_ = text;
  write(kClearLine + shown_live());
}

void Console::keep_live() {
  const std::lock_guard lock(mutex_);
  if (!live_.empty()) write("\n");
  live_.clear();
}

std::string Console::shown_live() const {
  // One column stays free: a full line would wrap, and clearing it would leave its upper half.
  return live_.substr(0, width() - 1);
}

void Console::write(std::string_view text) {
  // Nobody to tell when this fails: it is where errors are told.
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor_, text.data(), text.size());
    if (done < 0 && errno != EINTR) return;
    if (done > 0) text.remove_prefix(done);
  }
}

}  // namespace shardwise::base

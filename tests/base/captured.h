// A pipe and a pseudo terminal whose output the test captures.
#pragma once
#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace shardwise::test {

class Captured {
 public:
  ~Captured() {
    ::close(ours_);
    ::close(theirs_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  int descriptor() const { return theirs_; }

  /// Returns the text that was written since the last call.
  std::string text() {
    std::string all;
    char bytes[4096];
    for (ssize_t got; (got = ::read(ours_, bytes, sizeof(bytes))) > 0;) all.append(bytes, got);
    return all;
  }

 protected:
  Captured() = default;
  void check(bool is_done) {
    if (!is_done) throw std::system_error(errno, std::generic_category(), "captured");
  }
  void set_nonblocking() { check(::fcntl(ours_, F_SETFL, O_NONBLOCK) == 0); }

  int ours_ = -1, theirs_ = -1;
};

class CapturedPipe : public Captured {
 public:
  CapturedPipe() {
    int ends[2];
    check(::pipe(ends) == 0);
    ours_ = ends[0], theirs_ = ends[1];
    set_nonblocking();
  }
};

class CapturedTerminal : public Captured {
 public:
  explicit CapturedTerminal(unsigned short columns) {
    termios raw{};  // no output processing: the test reads exactly what was written
    ::cfmakeraw(&raw);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    check(::openpty(&ours_, &theirs_, nullptr, &raw, &size) == 0);
    set_nonblocking();
  }
};

}  // namespace shardwise::test

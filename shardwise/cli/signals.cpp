#include "shardwise/cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <utility>

namespace shardwise::cli {
namespace {

volatile sig_atomic_t says_why = 0;
volatile sig_atomic_t is_on_terminal = 0;
std::atomic<const char*> unfinished = nullptr;  // the file to remove
static_assert(std::atomic<const char*>::is_always_lock_free);
volatile sig_atomic_t remembered = 0;

void say(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody left to tell
}

/// Only async-signal-safe calls: the signal may have come in the middle of anything.
void end(int signal) {
  if (const char* path = unfinished.load()) ::unlink(path);
  if (is_on_terminal) say("\n");  // below the live line
  if (says_why) {
    say(signal == SIGINT ? "shardwise: ended by signal 2 (Interrupt)\n"
                         : "shardwise: ended by signal 15 (Terminated)\n");
  }
  _exit(128 + signal);
}

void remember(int signal) {
  if (remembered) end(signal);
  remembered = signal;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;  // nohup's wish
  action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void end_cleanly_on_signals(bool says_so) {
  says_why = says_so;
  is_on_terminal = ::isatty(STDERR_FILENO) == 1;
  handle(SIGINT, end);
  handle(SIGTERM, end);
}

void remember_signals() {
  says_why = 1;
  is_on_terminal = ::isatty(STDERR_FILENO) == 1;
  handle(SIGINT, remember);
  handle(SIGTERM, remember);
}

void check_signals() {
  if (remembered) throw EndedBySignal(remembered);
}

const char* EndedBySignal::what() const noexcept {
  return signal_ == SIGINT ? "ended by signal 2 (Interrupt)" : "ended by signal 15 (Terminated)";
}

RemovedOnSignal::RemovedOnSignal(std::string path) : path_(std::move(path)) {
  unfinished = path_.c_str();
}

RemovedOnSignal::~RemovedOnSignal() {
  unfinished = nullptr;
}

}  // namespace shardwise::cli

#include "shardwise/cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <utility>

namespace shardwise::cli {
namespace {

volatile sig_atomic_t prints_signal = 0;
volatile sig_atomic_t is_on_terminal = 0;
std::atomic<const char*> unfinished = nullptr;  // the file to remove
static_assert(std::atomic<const char*>::is_always_lock_free);
volatile sig_atomic_t remembered = 0;

void write_stderr(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // standard error is closed
}

/// Makes async-signal-safe calls only, because the signal may interrupt any code.
void end(int signal) {
  if (const char* path = unfinished.load()) ::unlink(path);
  if (is_on_terminal) write_stderr("\n");  // below the progress line
  if (prints_signal) {
    write_stderr(signal == SIGINT ? "shardwise: ended by signal 2 (Interrupt) [SW0350]\n"
                                  : "shardwise: ended by signal 15 (Terminated) [SW0350]\n");
  }
  _exit(128 + signal);
}

void remember(int signal) {
  if (remembered) end(signal);
  remembered = signal;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;  // as nohup sets it
  action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void end_cleanly_on_signals(bool prints_reason) {
  prints_signal = prints_reason;
  is_on_terminal = ::isatty(STDERR_FILENO) == 1;
  handle(SIGINT, end);
  handle(SIGTERM, end);
}

void remember_signals() {
  prints_signal = 1;
  is_on_terminal = ::isatty(STDERR_FILENO) == 1;
  handle(SIGINT, remember);
  handle(SIGTERM, remember);
}

void check_signals() {
  if (remembered) throw EndedBySignal(remembered);
}

void forget_signals() {
  remembered = 0;
  unfinished = nullptr;
}

const char* EndedBySignal::what() const noexcept {
  return signal_ == SIGINT ? "ended by signal 2 (Interrupt) [SW0350]"
                           : "ended by signal 15 (Terminated) [SW0350]";
}

RemovedOnSignal::RemovedOnSignal(std::string path) : path_(std::move(path)) {
  unfinished = path_.c_str();
}

RemovedOnSignal::~RemovedOnSignal() {
  unfinished = nullptr;
}

}  // namespace shardwise::cli

// A signal of the process interrupts any thread that does not block it, so a signalfd, which the launching
// thread reads, would miss those that another thread gets. Handlers get all of them.
#include "shardwise/launch/launch_signals.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "shardwise/base/fd.h"

namespace shardwise::launch {
namespace {

/// From the handler to the launching thread. Never closed: a handler on another thread may still write to it
/// when the launcher has restored the actions.
struct SignalPipe {
  base::Fd read_end, write_end;

  SignalPipe() {
    int ends[2];
    TORCH_CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0,
                "launch: cannot create a pipe for signals; got: ", std::strerror(errno), " [SW0138]");
    read_end = base::Fd(ends[0]);
    write_end = base::Fd(ends[1]);
  }
};

SignalPipe* signal_pipe = nullptr;

// Of the launcher, for the handler.
std::atomic<int> signal_write_end = -1;
std::atomic<pid_t> launcher_pid = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

/// Makes async-signal-safe calls only. A fork of the launcher inherits the handler: it ends, as it would
/// without one.
void record_signal(int number, siginfo_t* info, void*) {
  if (getpid() != launcher_pid) {
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  const int interrupted_error = errno;
  const TerminationSignal received{number, info->si_code == SI_KERNEL};
  [[maybe_unused]] const ssize_t written =
      write(signal_write_end, &received, sizeof received);  // may be full
  errno = interrupted_error;
}

}  // namespace

LaunchSignals::LaunchSignals() {
  if (launcher_pid != getpid()) signal_pipe = new SignalPipe;  // a fork must not share its parent's
  signal_write_end = signal_pipe->write_end.get();
  launcher_pid = getpid();
  sigset_t recorded;
  sigemptyset(&recorded);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &actions_before_[i]);
    struct sigaction action {};
    if (kSignals[i] == SIGCHLD) {
      action.sa_handler = SIG_DFL;
    } else if (actions_before_[i].sa_handler == SIG_IGN) {
      continue;
    } else {
      action.sa_sigaction = record_signal;
      action.sa_flags = SA_SIGINFO | SA_RESTART;
      // Else the later of two pending signals interrupts the handler of the first.
      sigfillset(&action.sa_mask);
      sigaddset(&recorded, kSignals[i]);
    }
    sigaction(kSignals[i], &action, nullptr);
  }
  pthread_sigmask(SIG_UNBLOCK, &recorded, &mask_before_);
}

LaunchSignals::~LaunchSignals() {
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &actions_before_[i], nullptr);
  while (const auto unread = next()) kill(getpid(), unread->number);
}

int LaunchSignals::descriptor() const {
  return signal_pipe->read_end.get();
}

std::optional<TerminationSignal> LaunchSignals::next() {
  TerminationSignal received;
  if (read(descriptor(), &received, sizeof received) != sizeof received) return std::nullopt;
  return received;
}

}  // namespace shardwise::launch

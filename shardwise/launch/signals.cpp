#include "shardwise/launch/signals.h"

#include <c10/util/Exception.h>
#include <unistd.h>

namespace shardwise::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

LaunchSignals::LaunchSignals() {
  // A process that ignores SIGCHLD (inherited through exec) gets no signal when a child exits.
  signal(SIGCHLD, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  for (int termination : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(termination)) sigaddset(&mask, termination);
  }
  fd_ = base::Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  TORCH_CHECK(fd_, "launch: cannot create a descriptor for signals [SW0138]");
  pthread_sigmask(SIG_BLOCK, &mask, &mask_before_);
}

LaunchSignals::~LaunchSignals() {
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<signalfd_siginfo> LaunchSignals::next() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return info;
}

}  // namespace shardwise::launch

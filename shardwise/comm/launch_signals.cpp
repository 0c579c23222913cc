#include "shardwise/comm/launch_signals.h"

#include <c10/util/Exception.h>
#include <unistd.h>

namespace shardwise::comm {
namespace {

bool is_ignored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

LaunchSignals::LaunchSignals() {
  // Whoever ignores SIGCHLD (it is inherited through exec) is never told of a child's end.
  signal(SIGCHLD, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  for (int request : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(request)) sigaddset(&mask, request);
  }
  fd_ = base::Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  TORCH_CHECK(fd_, "launch: the system gives no descriptor for signals");
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

}  // namespace shardwise::comm

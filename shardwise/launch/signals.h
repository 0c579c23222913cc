// Signals to the launcher as a file descriptor that its loop can poll.
#pragma once
#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "shardwise/base/fd.h"

namespace shardwise::launch {

/// Receives SIGCHLD and the termination signals (SIGINT, SIGTERM, SIGHUP) through a descriptor instead of
/// handlers while the object lives. A termination signal that this process was started to ignore (nohup)
/// stays ignored.
class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;

  int descriptor() const { return fd_.get(); }
  /// Returns the previous signal mask, which started processes get back.
  const sigset_t& mask_before() const { return mask_before_; }
  /// Returns the next pending signal, or nullopt.
  std::optional<signalfd_siginfo> next();

 private:
  sigset_t mask_before_;
  base::Fd fd_;
};

}  // namespace shardwise::launch

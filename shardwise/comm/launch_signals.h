// Signals to the launcher as something that its loop can wait for beside other descriptors.
#pragma once
#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "shardwise/base/fd.h"

namespace shardwise::comm {

/// While it lives, SIGCHLD and the requests to end (SIGINT, SIGTERM, SIGHUP) are read here instead of
/// delivered. A request that this process was started to ignore (nohup) stays ignored.
class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;

  int descriptor() const { return fd_.get(); }
  /// The mask before: what started processes get back.
  const sigset_t& mask_before() const { return mask_before_; }
  /// The next signal that has come, or nothing.
  std::optional<signalfd_siginfo> next();

 private:
  sigset_t mask_before_;
  base::Fd fd_;
};

}  // namespace shardwise::comm

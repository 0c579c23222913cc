// The signals of the process that launches a job.
#pragma once
#include <signal.h>

#include <array>
#include <optional>

namespace shardwise::launch {

struct TerminationSignal {
  int number;
  bool is_from_terminal;  // which has sent it to the ranks, too: they are in this process's group
};

/// Records the termination signals (SIGINT, SIGTERM, SIGHUP) of this process, whichever of its threads gets
/// them, while the object lives. One that this process was started to ignore (nohup) stays ignored. Also
/// gives SIGCHLD its default action: a process that ignores it cannot read the exit codes of its children.
/// The destructor restores all actions and sends the signals again that `next` has not returned. At most one
/// such object exists at a time.
class LaunchSignals {
 public:
  /// Errors: c10::Error if the system cannot create a pipe.
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  /// Returns a descriptor that is readable while a signal is recorded.
  int descriptor() const;
  /// Returns the next recorded signal, or nullopt.
  std::optional<TerminationSignal> next();
  /// Returns the previous signal mask, which started processes get back.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGCHLD};

  sigset_t mask_before_;
  std::array<struct sigaction, kSignals.size()> actions_before_;
};

}  // namespace shardwise::launch

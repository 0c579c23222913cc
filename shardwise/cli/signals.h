// SIGINT and SIGTERM in a process that computes: it exits at once, and saved files stay valid.
//
// A launcher handles signals itself (launch/launch.h).
#pragma once
#include <exception>
#include <string>

namespace shardwise::cli {

/// Makes SIGINT and SIGTERM end this process with exit code 128 plus the signal's number, after a newline on
/// a terminal. With `prints_reason` it also prints the signal; a rank leaves that to its launcher.
void end_cleanly_on_signals(bool prints_reason);

/// Makes SIGINT and SIGTERM also remove the file `path`, if it exists, during this object's lifetime. At most
/// one such object exists at a time.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(std::string path);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  std::string path_;
};

/// Defers SIGINT and SIGTERM to check_signals, for work that must clean up first; a second signal ends the
/// process at once.
void remember_signals();
/// Throws EndedBySignal if a deferred signal has arrived.
void check_signals();

/// Forgets a deferred signal and the file of RemovedOnSignal: in a process that is a copy of the one they are
/// of.
void forget_signals();

class EndedBySignal : public std::exception {
 public:
  explicit EndedBySignal(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override;

 private:
  int signal_;
};

}  // namespace shardwise::cli

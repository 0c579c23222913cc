// Ctrl-C and SIGTERM in a process that computes: it ends at once, and what it has saved stands.
//
// A launcher looks after its own signals (comm/launch.h).
#pragma once
#include <exception>
#include <string>

namespace shardwise::cli {

/// From now on SIGINT and SIGTERM end this process with 128 plus the signal's number, the terminal's line
/// finished first. With `says_so` a line tells why; a rank leaves that to its launcher.
void end_cleanly_on_signals(bool says_so);

/// While it lives, such a signal removes the file `path` too, which need not be there. One at a time.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(std::string path);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  std::string path_;
};

/// From now on SIGINT and SIGTERM are remembered until check_signals, for work that has to tidy up first; the
/// second one ends the process.
void remember_signals();
/// Errors: EndedBySignal once one has come.
void check_signals();

class EndedBySignal : public std::exception {
 public:
  explicit EndedBySignal(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override;

 private:
  int signal_;
};

}  // namespace shardwise::cli

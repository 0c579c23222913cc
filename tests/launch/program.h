// Starts a program, keeps its output and waits for it with a deadline.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <source_location>
#include <string>
#include <vector>

namespace shardwise::testing {

/// Limit, in seconds, for a started program's first output on a busy machine.
inline constexpr double kStartLimit = 60;

class Program {
 public:
  struct Options {
    std::vector<std::string> environment = {};  // added to this process's own: "NAME=value"
    std::string input = {};
    std::vector<int> ignored_signals = {};
    bool has_terminal = false;  // standard input is a pseudo-terminal; press() types into it
  };
  explicit Program(const std::vector<std::string>& argv) : Program(argv, Options()) {}
  Program(const std::vector<std::string>& argv, const Options& options);
  ~Program();
  Program(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const {
    if (pid_ > 0) kill(pid_, signal);
  }
  void press(char key) const;
  /// Returns waitpid's status; fails the test and kills the program after `limit_s`, scaled as every
  /// deadline.
  int wait(double limit_s = 20);
  /// As wait(), for a deadline under test: prints how long the program took (tests/support/deadline.h).
  int wait_within(double deadline_s, std::source_location where = std::source_location::current());
  /// Return what the program has written so far; errors() without the codes of errors.
  std::string output() const;
  std::string errors() const;
  std::string coded_errors() const;
  /// Waits until `errors()` has `count` lines that contain `text`; returns those lines.
  std::vector<std::string> wait_for_lines(const std::string& text, size_t count) const;

 private:
  int input_, output_, errors_, terminal_ = -1;
  pid_t pid_;
  bool is_running_ = true;
};

/// Returns the environment that torchrun gives a rank of a job on one node, with that run id.
std::vector<std::string> torchrun_environment(int rank, int size, const std::string& id);

/// Returns the exit code in waitpid's status; -1 if a signal ended the program.
int exit_code(int status);

/// Sends a signal by kill(2) if `pid` is a single process; returns false for process groups and for -1.
bool send_to(pid_t pid, int signal);

/// Returns the processes that were started with "NAME=value" in their environment, without zombies.
std::vector<pid_t> processes_with(const std::string& variable);

/// Waits for that rank among the processes with `mark` in their environment and returns its pid; fails the
/// test and returns -1 at kStartLimit.
pid_t pid_of_rank(int rank, const std::string& mark);

}  // namespace shardwise::testing

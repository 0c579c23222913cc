// A started program whose output is kept, and that can be waited for with a deadline.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace shardwise::testing {

/// Seconds until something that was started shows a sign of life, on a busy machine.
inline constexpr double kStartLimit = 60;

class Program {
 public:
  struct Options {
    std::vector<std::string> environment = {};  // added to this process's own: "NAME=value"
    std::string input = {};
    std::vector<int> ignored_signals = {};
    bool has_terminal = false;  // its input is a terminal of its own, where keys can be pressed
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
  /// waitpid's status; fails the test and kills the program after `limit_s`.
  int wait(double limit_s = 20);
  /// What it has written so far.
  std::string output() const;
  std::string errors() const;
  /// Waits until `errors()` holds `count` lines that contain `text`; returns those lines.
  std::vector<std::string> wait_for_lines(const std::string& text, size_t count) const;

 private:
  int input_, output_, errors_, terminal_ = -1;
  pid_t pid_;
  bool is_running_ = true;
};

/// Of waitpid's status; -1 where a signal ended the program.
int exit_code(int status);

/// kill(2) for a process that was found; false for any other number, which would mean a group or everybody.
bool send_to(pid_t pid, int signal);

/// The processes that were started with "NAME=value" in their environment; zombies do not count.
std::vector<pid_t> processes_with(const std::string& variable);

/// Waits for that rank among the processes with `mark` in their environment; fails the test, and gives -1,
/// when it does not come.
pid_t pid_of_rank(int rank, const std::string& mark);

}  // namespace shardwise::testing

// Other programs as children of this process.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::cli {

/// Returns the first of `names` that is a program in PATH.
std::optional<std::string> program_in_path(const std::vector<std::string>& names);

/// Runs a program without input to its end. Returns nullopt if it succeeds, else the first line that it
/// prints, or why it cannot run.
std::optional<std::string> complaint_of(const std::vector<std::string>& argv);

/// How a Child is started.
struct ChildOptions {
  std::vector<std::string> environment = {};  // beside this process's: "NAME=value"
  bool has_pipe = false;     // its input is a pipe that ends with this process; else it is empty
  bool has_session = false;  // of its own, which Ctrl-C does not reach
};

/// A program that runs beside this process and prints where this process does.
class Child {
 public:
  /// Errors: c10::Error if the system cannot start it.
  Child(const std::vector<std::string>& argv, const ChildOptions& options);
  /// Ends its input and waits until it exits; sends SIGTERM first unless it has the pipe.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Waits at most so long. Returns waitpid's status once the child has exited.
  std::optional<int> wait_for(std::chrono::milliseconds limit);

 private:
  base::Fd input_;  // the pipe's write end
  pid_t pid_ = -1;
  std::optional<int> status_;
};

}  // namespace shardwise::cli

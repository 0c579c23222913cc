#include "shardwise/cli/child.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "shardwise/base/environment.h"

namespace shardwise::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 50ms;
constexpr auto kTimeToEnd = 3s;  // after SIGTERM, for mpirun to end its ranks on all hosts

struct Pipe {
  base::Fd read_end, write_end;
};

Pipe new_pipe() {
  int ends[2];
  TORCH_INTERNAL_ASSERT(pipe2(ends, O_CLOEXEC) == 0, std::strerror(errno));
  return {base::Fd(ends[0]), base::Fd(ends[1])};
}

std::vector<char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& one : strings) pointers.push_back(const_cast<char*>(one.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The descriptors of a child's streams; -1: an empty input, and this process's outputs.
struct Streams {
  int input = -1, outputs = -1;
};

/// Returns this process's variables, of which those of `more` replace the ones of their names.
std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> environment = base::env_all();
  for (const std::string& variable : more) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    std::erase_if(environment, [&](const std::string& other) { return other.starts_with(name); });
    environment.push_back(variable);
  }
  return environment;
}

/// Returns the process id, or -1 and the reason in errno.
pid_t start_child(const std::vector<std::string>& argv, const Streams& streams, const ChildOptions& options) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  if (streams.input >= 0) posix_spawn_file_actions_adddup2(&actions, streams.input, STDIN_FILENO);
  if (streams.input < 0) posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (streams.outputs >= 0) posix_spawn_file_actions_adddup2(&actions, streams.outputs, stream);
  if (options.has_session) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const std::vector<std::string> environment = environment_with(options.environment);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv.front().c_str(), &actions, &attributes, c_strings(argv).data(),
                                 c_strings(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  errno = error;
  return error == 0 ? pid : -1;
}

std::string read_all(const base::Fd& source) {
  std::string text;
  char chunk[1024];
  ssize_t n;
  while ((n = read(source.get(), chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR))
    if (n > 0) text.append(chunk, static_cast<size_t>(n));
  return text;
}

int exit_status_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

}  // namespace

std::optional<std::string> program_in_path(const std::vector<std::string>& names) {
  const std::string path = base::env_text("PATH").value_or("/usr/sbin:/usr/bin:/sbin:/bin");
  for (const std::string& name : names) {
    std::istringstream directories(path);
    for (std::string directory; std::getline(directories, directory, ':');) {
      const std::string file = directory + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return std::nullopt;
}

std::optional<std::string> complaint_of(const std::vector<std::string>& argv) {
  Pipe pipe = new_pipe();
  const pid_t pid = start_child(argv, {.outputs = pipe.write_end.get()}, {});
  if (pid < 0) return std::strerror(errno);
  pipe.write_end = base::Fd();
  const std::string printed = read_all(pipe.read_end);
  const int status = exit_status_of(pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  const std::string first = printed.substr(0, printed.find('\n'));
  return first.empty() ? "no message, and a failure" : first;
}

Child::Child(const std::vector<std::string>& argv, const ChildOptions& options) {
  Pipe pipe;
  if (options.has_pipe) pipe = new_pipe();
  pid_ = start_child(argv, {.input = pipe.read_end.get()}, options);
  TORCH_CHECK(pid_ > 0, "profile: cannot start ", argv.front(), "; got: ", std::strerror(errno), " [SW0829]");
  input_ = std::move(pipe.write_end);
}

Child::~Child() {
  if (!input_ && !status_) {
    kill(pid_, SIGTERM);
    wait_for(kTimeToEnd);
    if (!status_) kill(pid_, SIGKILL);
  }
  input_ = base::Fd();
  if (!status_) exit_status_of(pid_);
}

std::optional<int> Child::wait_for(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (!status_) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    if (status_ || std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(kPollInterval);
  }
  return status_;
}

}  // namespace shardwise::cli

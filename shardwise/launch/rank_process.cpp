#include "shardwise/launch/rank_process.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>

#include "shardwise/base/console.h"
#include "shardwise/base/environment.h"
#include "shardwise/base/exit.h"

namespace shardwise::launch {
namespace {

constexpr size_t kProcessName = 15;                 // characters
constexpr size_t kMaxLineBytes = size_t{64} << 10;  // a longer line is printed in parts

using Variables = std::map<std::string, std::string>;

Variables variables_of(const LaunchSettings& job, int rank) {
  return {{"SHARDWISE_RANK", std::to_string(rank)},
          {"SHARDWISE_WORLD_SIZE", std::to_string(job.ranks)},
          {"SHARDWISE_JOB", job.name},
          {"SHARDWISE_SECRET", job.secret.text()}};
}

/// Returns this process's variables, but with those of the rank.
std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> environment = base::env_all();
  std::erase_if(environment,
                [&](const std::string& v) { return variables.contains(v.substr(0, v.find('='))); });
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

// The next functions run in the child, where only async-signal-safe calls are allowed: another thread may
// hold malloc's lock. fmt::format_to_n allocates nothing.

/// Prints that `call` fails, and exits as a shell does that cannot run a program.
[[noreturn]] void exit_without_program(int rank, const char* call) {
  char line[256];
  const auto end = fmt::format_to_n(line, sizeof line - 1, "shardwise: rank {} cannot start; {}: {} [SW0655]",
                                    rank, call, strerrordesc_np(errno));
  *end.out = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, size_t(end.out + 1 - line));
  _exit(127);
}

void replace_standard_streams(int rank, int standard_error) {
  dup2(standard_error, STDERR_FILENO);
  const int null = open("/dev/null", O_RDWR);
  if (null < 0) exit_without_program(rank, "open /dev/null");
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  close(null);
}

void become_rank(const LaunchSettings& job, int rank, pid_t launcher, int standard_error) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher exited before prctl took effect
  if (standard_error >= 0) replace_standard_streams(rank, standard_error);
  sigprocmask(SIG_SETMASK, &job.signal_mask, nullptr);
}

[[noreturn]] void execute(int rank, char* const* argv, char* const* environment) {
  execve("/proc/self/exe", argv, environment);
  exit_without_program(rank, "execve");
}

// The functions below run in the child of a process with one thread, where all calls are allowed. They do
// what execve does.

/// Closes the descriptors that programs do not inherit.
void close_descriptors() {
  std::vector<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    open.push_back(std::stoi(entry.path().filename()));
  for (const int descriptor : open)
    if (const int flags = fcntl(descriptor, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC)) close(descriptor);
}

/// Names the process as `ps` and `top` show it: shardwise:3.
void name_process(int rank) {
  const std::string number = ":" + std::to_string(rank);
  const std::string name =
      std::string(program_invocation_short_name).substr(0, kProcessName - number.size()) + number;
  prctl(PR_SET_NAME, name.c_str());
}

[[noreturn]] void call_main(const LaunchSettings& job, const Variables& variables) {
  close_descriptors();
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  base::exit_quickly(job.main());
}

/// Returns false also if the system does not say.
bool has_one_thread() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

pid_t start_copy(const LaunchSettings& job, int rank, int standard_error) {
  const pid_t launcher = getpid();
  std::fflush(nullptr);  // else the copy prints it, too
  const pid_t pid = fork();
  if (pid != 0) return pid;
  become_rank(job, rank, launcher, standard_error);
  name_process(rank);
  call_main(job, variables_of(job, rank));
}

pid_t start_program(const LaunchSettings& job, int rank, int standard_error) {
  const std::vector<std::string> environment = environment_with(variables_of(job, rank));
  const auto argv_pointers = pointers(job.argv), environment_pointers = pointers(environment);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  become_rank(job, rank, launcher, standard_error);
  execute(rank, argv_pointers.data(), environment_pointers.data());
}

}  // namespace

RankProcess start_rank(const LaunchSettings& job, int rank) {
  base::Fd read_end, write_end;
  if (rank > 0) {
    int ends[2];
    TORCH_CHECK(pipe2(ends, O_CLOEXEC) == 0, "launch: cannot create a pipe for rank ", rank, "; ",
                std::strerror(errno), " [SW0125]");
    read_end = base::Fd(ends[0]);
    write_end = base::Fd(ends[1]);
    fcntl(read_end.get(), F_SETFL, O_NONBLOCK);  // the read end only: the rank's writes may block
  }
  const bool is_copy = job.main && has_one_thread();
  const pid_t pid = (is_copy ? start_copy : start_program)(job, rank, write_end.get());
  TORCH_CHECK(pid > 0, "launch: cannot create a process for rank ", rank, "; ", std::strerror(errno),
              " [SW0126]");
  return {pid, base::Fd(int(syscall(SYS_pidfd_open, pid, 0))), std::move(read_end)};
}

void print_line(const std::string& text) {
  base::Console& console = base::Console::standard_error();
  console.line(console.is_terminal() ? "\r\x1b[2K" + text : text);
}

// A rank that prints without end must not keep the launcher from signals and from the other ranks, so a call
// reads at most what a pipe holds.
void RankLines::forward() {
  constexpr int kReads = 16;
  char chunk[4096];
  for (int i = 0; i < kReads && source_; ++i) {
    const ssize_t n = read(source_.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) source_ = base::Fd();
    if (n <= 0) break;
    pending_.append(chunk, n);
  }
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    print(std::string_view(pending_).substr(begin, end - begin));
  }
  pending_.erase(0, begin);
  if (pending_.size() < kMaxLineBytes) return;
  print(pending_);
  pending_.clear();
}

void RankLines::forward_rest() {
  forward();
  if (!pending_.empty()) print(pending_);
  pending_.clear();
  source_ = base::Fd();
}

void RankLines::print(std::string_view line) {
  if (lines_left_ == 0) return;
  if (lines_left_ > 0) --lines_left_;
  print_line(fmt::format("[rank {}] {}", rank_, line));
}

std::string describe_exit(int status) {
  if (status == kLostStatus) return "exited, and another part of this program took its exit code";
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

}  // namespace shardwise::launch

#include "shardwise/launch/rank_process.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "shardwise/base/console.h"
#include "shardwise/base/environment.h"

namespace shardwise::launch {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 10;  // a longer line is printed in parts

std::vector<std::string> rank_environment(const LaunchSettings& job, int rank) {
  std::vector<std::string> environment = base::env_all();
  std::erase_if(environment, [](const std::string& v) {
    return v.starts_with("SHARDWISE_RANK=") || v.starts_with("SHARDWISE_WORLD_SIZE=") ||
           v.starts_with("SHARDWISE_JOB=") || v.starts_with("SHARDWISE_SECRET=");
  });
  environment.push_back(fmt::format("SHARDWISE_RANK={}", rank));
  environment.push_back(fmt::format("SHARDWISE_WORLD_SIZE={}", job.ranks));
  environment.push_back("SHARDWISE_JOB=" + job.name);
  environment.push_back("SHARDWISE_SECRET=" + job.secret.text());
  return environment;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

// The functions below run in the child, where only async-signal-safe calls are allowed: another thread may
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

[[noreturn]] void exec_rank(const LaunchSettings& job, int rank, pid_t launcher, int standard_error,
                            char* const* argv, char* const* environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher exited before prctl took effect
  sigprocmask(SIG_SETMASK, &job.signal_mask, nullptr);
  if (standard_error >= 0) replace_standard_streams(rank, standard_error);
  execve("/proc/self/exe", argv, environment);
  exit_without_program(rank, "execve");
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
  const auto environment = rank_environment(job, rank);
  const auto argv_pointers = pointers(job.argv), environment_pointers = pointers(environment);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    exec_rank(job, rank, launcher, write_end.get(), argv_pointers.data(), environment_pointers.data());
  }
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

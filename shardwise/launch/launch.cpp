// One loop waits for signals to this process, exits of ranks and lines of ranks. To end the job it sends
// signals of increasing severity, each with a deadline; the cause (a failed rank, Ctrl-C) determines the
// first one. A rank's exit is seen by its pidfd: SIGCHLD may go to another thread.
#include "shardwise/launch/launch.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "shardwise/base/fd.h"
#include "shardwise/base/random.h"
#include "shardwise/comm/shm/limits.h"
#include "shardwise/launch/launch_signals.h"
#include "shardwise/launch/rank_process.h"

namespace shardwise::launch {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// For the ranks that survive a failure, to detect it and to report what they waited for.
constexpr auto kTimeToReport = 1000ms;
// After Ctrl-C or SIGTERM, to write a last line or close a file.
constexpr auto kTimeToInterrupt = 1000ms;
constexpr auto kTimeToTerminate = 300ms;  // between SIGTERM and SIGKILL
constexpr auto kPollInterval = 50ms;      // of a rank without a pidfd

// Two jobs of one user must never use the same name, not even after process ids have wrapped around.
std::string new_job_name() {
  return fmt::format("launch/{}/{:016x}", getpid(), base::random_bits());
}

bool has_code(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/// Returns waitpid's status of a process that has exited, else nullopt.
std::optional<int> exit_status(pid_t pid) {
  int status;
  const pid_t found = waitpid(pid, &status, WNOHANG);
  if (found < 0 && errno == ECHILD) return kLostStatus;
  return found == pid ? std::optional(status) : std::nullopt;
}

bool send_by(const base::Fd& pidfd, int signal) {
  return syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

struct Rank {
  int number;
  pid_t pid;
  base::Fd pidfd;
  RankLines lines;
  std::optional<int> status = std::nullopt;  // waitpid's, once the rank has exited
};

class Launcher {
 public:
  Launcher() = default;
  ~Launcher();
  void start(const LaunchSettings& job);
  int wait_for_all();
  const sigset_t& mask_before() const { return signals_.mask_before(); }

 private:
  void wait();
  void read_signals();
  void reap();
  void on_interrupt(const TerminationSignal& signal);
  void on_failure(const Rank& rank);
  void escalate();
  void send(int signal);
  void print_cause() const;
  bool is_over() const;
  int64_t count_of(int code) const;
  int exit_code() const;

  LaunchSignals signals_;
  std::vector<Rank> ranks_;
  std::optional<size_t> failed_;  // the first rank that failed
  int interrupted_by_ = 0;        // the signal to this process that ended the job
  int next_signal_ = 0;           // sent to the ranks at the deadline; 0: the job is not ending
  Clock::time_point deadline_ = Clock::time_point::max();
};

Launcher::~Launcher() {
  send(SIGKILL);
  for (Rank& rank : ranks_) {
    if (!rank.status) waitpid(rank.pid, nullptr, 0);
  }
}

void Launcher::start(const LaunchSettings& job) {
  for (int rank = 0; rank < job.ranks; ++rank) {
    RankProcess process = start_rank(job, rank);
    ranks_.push_back(
        {rank, process.pid, std::move(process.pidfd), RankLines(rank, std::move(process.standard_error))});
  }
}

int Launcher::wait_for_all() {
  while (!is_over()) {
    wait();
    for (Rank& rank : ranks_) rank.lines.forward();
    read_signals();
    reap();
    if (Clock::now() >= deadline_) escalate();
  }
  print_cause();
  return exit_code();
}

void Launcher::print_cause() const {
  if (interrupted_by_) {
    print_line(fmt::format("shardwise: ended by signal {} ({}) [SW0350]", interrupted_by_,
                           strsignal(interrupted_by_)));
  } else if (failed_ && count_of(kUsageErrorExitCode) < std::ssize(ranks_)) {
    const Rank& rank = ranks_[*failed_];
    print_line(fmt::format("shardwise: rank {} (pid {}) {}; the job is ended [SW0349]", rank.number, rank.pid,
                           describe_exit(*rank.status)));
  }
}

void Launcher::wait() {
  std::vector<pollfd> events{{signals_.descriptor(), POLLIN, 0}};
  auto until = deadline_;
  for (const Rank& rank : ranks_) {
    events.push_back({rank.lines.descriptor(), POLLIN, 0});
    if (rank.status) continue;
    events.push_back({rank.pidfd.get(), POLLIN, 0});
    if (!rank.pidfd) until = std::min(until, Clock::now() + kPollInterval);
  }
  int timeout_ms = -1;
  if (until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    timeout_ms = std::max<int>(0, left.count());
  }
  poll(events.data(), events.size(), timeout_ms);
}

void Launcher::read_signals() {
  while (const auto signal = signals_.next()) on_interrupt(*signal);
}

void Launcher::reap() {
  std::vector<const Rank*> failed;
  for (Rank& rank : ranks_) {
    if (rank.status) continue;
    const std::optional<int> status = exit_status(rank.pid);
    if (!status) continue;
    rank.status = status;
    rank.lines.forward_rest();
    if (*status != 0 && !has_code(*status, kCheckFailedExitCode)) failed.push_back(&rank);
  }
  if (failed_ || failed.empty()) return;
  // On a busy machine a survivor's error may be reaped together with its cause: prefer a rank that was
  // killed.
  const auto killed =
      std::find_if(failed.begin(), failed.end(), [](const Rank* r) { return WIFSIGNALED(*r->status); });
  on_failure(killed == failed.end() ? *failed.front() : **killed);
}

void Launcher::on_interrupt(const TerminationSignal& signal) {
  if (next_signal_) {  // a second signal, or one while a failed job ends: kill at once
    deadline_ = Clock::now();
    next_signal_ = SIGKILL;
  } else {
    // Ctrl-C in a terminal has already reached the ranks, which are in this process's group; kill(1) has not.
    if (!signal.is_from_terminal) send(signal.number);
    deadline_ = Clock::now() + kTimeToInterrupt;
    next_signal_ = SIGKILL;
  }
  if (!interrupted_by_) interrupted_by_ = signal.number;
}

void Launcher::on_failure(const Rank& rank) {
  failed_ = rank.number;
  for (Rank& other : ranks_) other.lines.allow_one_more();
  send(SIGCONT);  // a stopped rank then detects the failure and exits as the others do
  if (next_signal_) return;
  deadline_ = Clock::now() + kTimeToReport;
  next_signal_ = SIGTERM;
}

void Launcher::escalate() {
  send(next_signal_);
  const bool is_last = next_signal_ == SIGKILL;
  deadline_ = is_last ? Clock::time_point::max() : Clock::now() + kTimeToTerminate;
  next_signal_ = SIGKILL;
}

void Launcher::send(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.status) continue;
    // By the pidfd, because another thread may have reaped the rank, whose pid is then another process's.
    const bool is_decided = rank.pidfd && (send_by(rank.pidfd, signal) || errno == ESRCH);
    if (!is_decided) kill(rank.pid, signal);
  }
}

bool Launcher::is_over() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.status.has_value(); });
}

/// Returns the number of ranks that exited with `code`.
int64_t Launcher::count_of(int code) const {
  return std::ranges::count_if(ranks_, [=](const Rank& r) { return has_code(*r.status, code); });
}

int Launcher::exit_code() const {
  if (interrupted_by_) return 128 + interrupted_by_;
  if (!failed_) return count_of(kCheckFailedExitCode) > 0 ? kCheckFailedExitCode : 0;
  return count_of(kUsageErrorExitCode) > 0 ? kUsageErrorExitCode : 1;
}

}  // namespace

void check_started_ranks(int64_t ranks) {
  using comm::shm::kMaxRanks;  // else each of the ranks would refuse its group, once all are started
  TORCH_CHECK_VALUE(ranks >= 1 && ranks <= kMaxRanks, "launch: a job must have from 1 to ", kMaxRanks,
                    " ranks; got ", ranks, " [SW0123]");
}

int launch_ranks(int ranks, const std::vector<std::string>& argv, const LaunchOptions& options) {
  check_started_ranks(ranks);
  Launcher launcher;
  if (options.before_start) options.before_start();
  launcher.start({argv, options.main, new_job_name(), base::Secret::random(), ranks, launcher.mask_before()});
  return launcher.wait_for_all();
}

}  // namespace shardwise::launch

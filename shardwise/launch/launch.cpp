// One loop waits for signals to this process, exits of ranks and lines of ranks. To end the job it sends
// signals of increasing severity, each with a deadline; the cause (a failed rank, Ctrl-C) determines the
// first one.
#include "shardwise/launch/launch.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "shardwise/base/fd.h"
#include "shardwise/base/random.h"
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

// Two jobs of one user must never use the same name, not even after process ids have wrapped around.
std::string new_job_name() {
  return fmt::format("launch/{}/{:016x}", getpid(), base::random_bits());
}

bool is_ignored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// Receives SIGCHLD and the termination signals (SIGINT, SIGTERM, SIGHUP) through a descriptor instead of
/// handlers while the object lives. A termination signal that this process was started to ignore (nohup)
/// stays ignored.
class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;

  int descriptor() const { return fd_.get(); }
  /// Returns the previous signal mask, which started processes get back.
  const sigset_t& mask_before() const { return mask_before_; }
  /// Returns the next pending signal, or nullopt.
  std::optional<signalfd_siginfo> next();

 private:
  sigset_t mask_before_;
  base::Fd fd_;
};

LaunchSignals::LaunchSignals() {
  // A process that ignores SIGCHLD (inherited through exec) gets no signal when a child exits.
  signal(SIGCHLD, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  for (int termination : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(termination)) sigaddset(&mask, termination);
  }
  fd_ = base::Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  TORCH_CHECK(fd_, "launch: cannot create a descriptor for signals [SW0138]");
  pthread_sigmask(SIG_BLOCK, &mask, &mask_before_);
}

LaunchSignals::~LaunchSignals() {
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<signalfd_siginfo> LaunchSignals::next() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return info;
}

bool has_code(int status, int code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

struct Rank {
  int number;
  pid_t pid;
  RankLines lines;
  std::optional<int> status = std::nullopt;  // waitpid's, once the rank has exited
};

class Launcher {
 public:
  Launcher() = default;
  ~Launcher();
  void start(int ranks, const std::vector<std::string>& argv);
  int wait_for_all();

 private:
  void wait();
  void read_signals();
  void reap();
  void on_interrupt(const signalfd_siginfo& signal);
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

void Launcher::start(int ranks, const std::vector<std::string>& argv) {
  const LaunchSettings job{argv, new_job_name(), base::Secret::random(), ranks, signals_.mask_before()};
  for (int rank = 0; rank < ranks; ++rank) {
    RankProcess process = start_rank(job, rank);
    ranks_.push_back({rank, process.pid, RankLines(rank, std::move(process.standard_error))});
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
  for (const Rank& rank : ranks_) events.push_back({rank.lines.descriptor(), POLLIN, 0});
  int timeout_ms = -1;
  if (deadline_ != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    timeout_ms = std::max<int>(0, left.count());
  }
  poll(events.data(), events.size(), timeout_ms);
}

void Launcher::read_signals() {
  while (const auto signal = signals_.next()) {
    if (signal->ssi_signo != SIGCHLD) on_interrupt(*signal);
  }
}

void Launcher::reap() {
  std::vector<const Rank*> failed;
  for (Rank& rank : ranks_) {
    int status;
    if (rank.status || waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
    rank.status = status;
    rank.lines.forward_rest();
    if (status != 0 && !has_code(status, kCheckFailedExitCode)) failed.push_back(&rank);
  }
  if (failed_ || failed.empty()) return;
  // On a busy machine a survivor's error may be reaped together with its cause: prefer a rank that was
  // killed.
  const auto killed =
      std::find_if(failed.begin(), failed.end(), [](const Rank* r) { return WIFSIGNALED(*r->status); });
  on_failure(killed == failed.end() ? *failed.front() : **killed);
}

void Launcher::on_interrupt(const signalfd_siginfo& signal) {
  if (next_signal_) {  // a second signal, or one while a failed job ends: kill at once
    deadline_ = Clock::now();
    next_signal_ = SIGKILL;
  } else {
    // Ctrl-C in a terminal has already reached the ranks, which are in this process's group; kill(1) has not.
    if (signal.ssi_code != SI_KERNEL) send(signal.ssi_signo);
    deadline_ = Clock::now() + kTimeToInterrupt;
    next_signal_ = SIGKILL;
  }
  if (!interrupted_by_) interrupted_by_ = signal.ssi_signo;
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
    if (!rank.status) kill(rank.pid, signal);
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

int launch_ranks(int ranks, const std::vector<std::string>& argv) {
  TORCH_CHECK_VALUE(ranks >= 1, "launch: a job must have at least one rank; got ", ranks, " [SW0123]");
  Launcher launcher;
  launcher.start(ranks, argv);
  return launcher.wait_for_all();
}

}  // namespace shardwise::launch

#include "shardwise/comm/mpi/process.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/base/log.h"
#include "shardwise/comm/mpi/transfers.h"

namespace shardwise::comm::mpi {
namespace {

constexpr std::chrono::microseconds kPollInterval{100};        // of background transfers
constexpr std::chrono::milliseconds kStuckCheckInterval{100};  // while another call holds the lock
constexpr int kFailureExitCode = 1;

std::mutex start_mutex;
Process* the_process = nullptr;  // never freed: its thread may be in a call that never returns

[[noreturn]] void fail(const ProcessOptions& job, const std::string& what, std::chrono::milliseconds elapsed,
                       const char* op) {
  const std::chrono::duration<double> waited = elapsed, limit = job.timeout;
  throw base::CommError({op, job.rank, /*peer=*/-1, /*sequence=*/0, waited.count(), limit.count()}, what);
}

}  // namespace

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

Process* Process::started() {
  const std::lock_guard guard(start_mutex);
  return the_process;
}

Process& Process::get(const ProcessOptions& job) {
  const std::lock_guard guard(start_mutex);
  if (the_process == nullptr) {
    the_process = new Process(job.timeout);
    on_exit([](int code, void*) { the_process->at_exit(code); }, nullptr);
    the_process->begin(job);
  }
  if (the_process->start_failure_) std::rethrow_exception(the_process->start_failure_);
  the_process->check(job);
  TORCH_CHECK_VALUE(!the_process->shutdown_started_,
                    "connect: MPI can be started only once per process; got a group after shutdown [SW0122]");
  the_process->lock();  // throws if a call never returned
  return *the_process;
}

Process::Process(std::chrono::milliseconds timeout) : timeout_(timeout) {
  std::thread([this] { run_thread(); }).detach();
}

void Process::begin(const ProcessOptions& job) {
  try {
    if (!run([this] { start(); }, job.timeout))
      fail(job, "timed out waiting for all ranks of the job to start MPI [SW0316]", job.timeout, "connect");
    check(job);
  } catch (...) {
    start_failure_ = std::current_exception();
    if (!is_stuck_ && world_ != MPI_COMM_NULL && size_ == 1) shutdown();  // does not wait for other ranks
  }
}

// Runs on MPI's thread, with the lock.
void Process::start() {
  int is_started = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_started);
  initialized_here_ = !is_started;
  if (initialized_here_) {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    TORCH_CHECK_VALUE(level >= MPI_THREAD_SERIALIZED,
                      "connect: MPI must support MPI_THREAD_SERIALIZED; got level ", level, " [SW0118]");
  } else {  // the program's calls do not use the lock
    MPI_Query_thread(&level);
    TORCH_CHECK_VALUE(
        level >= MPI_THREAD_MULTIPLE,
        "connect: a program that initializes MPI itself must request MPI_THREAD_MULTIPLE; got level ", level,
        " [SW0119]");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  int* largest = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(world_, MPI_TAG_UB, reinterpret_cast<void*>(&largest), &is_known);
  if (is_known) largest_tag_ = *largest;
}

// A process that another MPI's mpirun started is a singleton to this MPI.
void Process::check(const ProcessOptions& job) const {
  TORCH_CHECK_VALUE(rank_ == job.rank && size_ == job.world_size,
                    "connect: multi-node ranks must be started by Open MPI's own mpirun; got rank ", job.rank,
                    " of ", job.world_size, ", while MPI reports rank ", rank_, " of ", size_, " [SW0117]");
}

// Two threads creating groups would deadlock with a rank that creates them in the other order.
std::unique_lock<std::mutex> Process::lock_group_creation(const std::string& name) {
  std::unique_lock guard(group_creation_, std::try_to_lock);
  TORCH_CHECK_VALUE(guard, "connect: multi-node groups must be created by one thread at a time; got group ",
                    name, " while another is being created [SW0121]");
  return guard;
}

std::future<void> Process::submit(std::function<void()> call) {
  std::packaged_task<void()> task(std::move(call));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard guard(mutex_);
    calls_.push_back(std::move(task));
  }
  work_.notify_one();
  return done;
}

bool Process::run(std::function<void()> call, std::chrono::milliseconds timeout) {
  std::future<void> done = submit(std::move(call));
  if (done.wait_for(base::capped(timeout)) != std::future_status::ready) {
    is_stuck_ = true;
    mark_unusable();
    return false;
  }
  done.get();
  return true;
}

std::unique_lock<std::timed_mutex> Process::try_lock() {
  std::unique_lock guard(mpi_mutex_, std::defer_lock);
  while (!is_shut_down_ && !guard.try_lock_for(kStuckCheckInterval) && !is_stuck_) continue;
  if (is_shut_down_ && guard) guard.unlock();
  return guard;
}

std::unique_lock<std::timed_mutex> Process::lock() {
  TORCH_CHECK_VALUE(!is_fork(), "MPI: only the process that started it may use it; got a call in process ",
                    getpid(),
                    ", a fork of it; call collectives in the parent, or start workers by spawn [SW0605]");
  std::unique_lock guard = try_lock();
  if (guard) return guard;
  const ProcessOptions job{rank_, size_, timeout_};
  if (is_shut_down_) fail(job, "MPI has been shut down in this process [SW0319]", {}, "shutdown");
  fail(job, "an MPI call has not returned since an earlier error [SW0320]", {}, "connect");
}

void Process::complete_in_background(std::shared_ptr<Transfers> transfers, OnFailure on_failure) {
  if (transfers->advance()) {
    if (transfers->error() != MPI_SUCCESS) on_failure(*transfers);
    return;
  }
  {
    const std::lock_guard guard(mutex_);
    background_.push_back({std::move(transfers), std::move(on_failure)});
  }
  work_.notify_one();
}

void Process::run_thread() {
  std::unique_lock guard(mutex_);
  while (true) {
    const auto has_call = [&] { return !calls_.empty(); };
    if (background_.empty()) {
      work_.wait(guard, [&] { return has_call() || !background_.empty(); });
    } else {
      work_.wait_for(guard, kPollInterval, has_call);
    }
    const std::vector<BackgroundTransfers> failed = advance_background();
    if (!failed.empty()) {
      guard.unlock();
      for (const BackgroundTransfers& background : failed) background.on_failure(*background.transfers);
      guard.lock();
    }
    if (!has_call()) continue;
    std::packaged_task<void()> call = std::move(calls_.front());
    calls_.pop_front();
    guard.unlock();
    {
      const std::lock_guard mpi_guard(mpi_mutex_);
      call();
    }
    guard.lock();
  }
}

// Called with `mutex_` held.
std::vector<Process::BackgroundTransfers> Process::advance_background() {
  if (is_shut_down_) background_.clear();
  std::vector<BackgroundTransfers> failed;
  std::erase_if(background_, [&](const BackgroundTransfers& background) {
    try {
      if (!background.transfers->advance()) return false;
    } catch (const base::CommError&) {  // an MPI call has not returned
      background.transfers->mark_failed();
    }
    if (background.transfers->error() != MPI_SUCCESS) failed.push_back(background);
    return true;
  });
  return failed;
}

bool Process::has_background() {
  const std::lock_guard guard(mutex_);
  return !background_.empty();
}

// MPI_Finalize is collective in Open MPI: it returns when all ranks have called it. A rank calls it up to one
// timeout late because of its own background transfers, so the others wait for two.
void Process::shutdown() {
  if (is_fork() || is_unusable_ || shutdown_started_.exchange(true)) return;
  const auto start = std::chrono::steady_clock::now();
  while (has_background() && std::chrono::steady_clock::now() - start < timeout_)
    std::this_thread::sleep_for(kPollInterval);
  {
    const std::lock_guard guard(mutex_);
    background_.clear();  // unreceived messages are leaked (Transfers)
    is_shut_down_ = true;
  }
  const std::chrono::milliseconds limit = 2 * timeout_;
  const auto passed =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  if (initialized_here_ && !run([] { MPI_Finalize(); }, limit - passed))
    fail({rank_, size_, limit}, "timed out waiting for all ranks to shut MPI down [SW0579]", limit,
         "shutdown");
}

// Runs at process exit. Unless the job ended, the other ranks would wait for this one until their timeouts.
// A fork inherits the handler but not MPI's thread.
void Process::at_exit(int exit_code) {
  if (is_fork()) return;
  if (!is_stuck_) {
    int is_finalized = 0;
    MPI_Finalized(&is_finalized);
    if (is_shut_down_ || is_finalized) return;
    if (exit_code == 0 && !is_unusable_ && shutdown_or_print()) return;
  }
  end_job(exit_code == 0 ? kFailureExitCode : exit_code);
}

bool Process::shutdown_or_print() {
  try {
    shutdown();
    return true;
  } catch (const base::CommError& error) {
    base::log_error(base::one_line(error));
    return false;
  }
}

// A call that never returned holds the lock. mpirun also ends the job of a rank that exits without
// MPI_Finalize.
void Process::end_job(int exit_code) {
  std::fflush(nullptr);
  if (const auto guard = try_lock()) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace shardwise::comm::mpi

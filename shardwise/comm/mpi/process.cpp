#include "shardwise/comm/mpi/process.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/mpi/transfers.h"

namespace shardwise::comm::mpi {
namespace {

constexpr std::chrono::microseconds kNap{100};   // between two looks at messages that nobody waits for
constexpr std::chrono::milliseconds kLook{100};  // between two looks at whether a call hangs
constexpr int kFailure = 1;

std::mutex start_mutex;
Process* the_process = nullptr;  // never freed: its thread may be in a call that hangs

[[noreturn]] void fail(const Job& job, const std::string& what, std::chrono::milliseconds elapsed,
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

Process& Process::of(const Job& job) {
  const std::lock_guard guard(start_mutex);
  if (the_process == nullptr) {
    the_process = new Process(job.timeout);
    on_exit([](int code, void*) { the_process->end_with(code); }, nullptr);
    the_process->begin(job);
  }
  if (the_process->start_failure_) std::rethrow_exception(the_process->start_failure_);
  the_process->check(job);
  TORCH_CHECK_VALUE(!the_process->is_finished_,
                    "connect: MPI is started once in a process; got a group after its end");
  the_process->enter();  // it does not hang
  return *the_process;
}

Process::Process(std::chrono::milliseconds timeout) : timeout_(timeout) {
  std::thread([this] { serve(); }).detach();
}

void Process::begin(const Job& job) {
  try {
    if (!run([this] { start(); }, job.timeout))
      fail(job, "not all ranks of the job came to start MPI", job.timeout, "connect");
    check(job);
  } catch (...) {
    start_failure_ = std::current_exception();
    if (!is_stuck_ && world_ != MPI_COMM_NULL && size_ == 1) finish();  // which waits for nobody
  }
}

// On the own thread, with the lock.
void Process::start() {
  int is_started = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_started);
  is_ours_ = !is_started;
  if (is_ours_) {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    TORCH_CHECK_VALUE(
        level >= MPI_THREAD_SERIALIZED,
        "connect: MPI must serve one thread after the other (MPI_THREAD_SERIALIZED); got level ", level);
  } else {  // the program's own calls know nothing of the lock
    MPI_Query_thread(&level);
    TORCH_CHECK_VALUE(level >= MPI_THREAD_MULTIPLE,
                      "connect: a program that starts MPI itself asks for MPI_THREAD_MULTIPLE; got level ",
                      level);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  int* largest = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(world_, MPI_TAG_UB, static_cast<void*>(&largest), &is_known);
  if (is_known) largest_tag_ = *largest;
}

// A process that another MPI's mpirun has started is alone in this one's eyes.
void Process::check(const Job& job) const {
  TORCH_CHECK_VALUE(rank_ == job.rank && size_ == job.world_size,
                    "connect: ranks of several hosts are started by Open MPI's own mpirun; got rank ",
                    job.rank, " of ", job.world_size, ", which MPI knows as ", rank_, " of ", size_);
}

// Two at once would wait for each other where another rank begins with the other.
std::unique_lock<std::mutex> Process::begin_group(const std::string& name) {
  std::unique_lock guard(making_, std::try_to_lock);
  TORCH_CHECK_VALUE(guard, "connect: groups across hosts are made by one thread at a time; got group ", name,
                    " while another is made");
  return guard;
}

std::future<void> Process::hand_over(std::function<void()> call) {
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
  std::future<void> done = hand_over(std::move(call));
  if (done.wait_for(timeout) != std::future_status::ready) {
    is_stuck_ = true;
    give_up();
    return false;
  }
  done.get();
  return true;
}

std::unique_lock<std::timed_mutex> Process::try_enter() {
  std::unique_lock guard(lock_, std::defer_lock);
  while (!has_ended_ && !guard.try_lock_for(kLook) && !is_stuck_) continue;
  if (has_ended_ && guard) guard.unlock();
  return guard;
}

std::unique_lock<std::timed_mutex> Process::enter() {
  std::unique_lock guard = try_enter();
  if (guard) return guard;
  const Job job{rank_, size_, timeout_};
  if (has_ended_) fail(job, "MPI has ended in this process", {}, "finish");
  fail(job, "a call of MPI hangs since an error", {}, "connect");
}

void Process::drive(std::shared_ptr<Transfers> transfers, Failed failed) {
  if (transfers->advance()) {
    if (transfers->error() != MPI_SUCCESS) failed(*transfers);
    return;
  }
  {
    const std::lock_guard guard(mutex_);
    driven_.push_back({std::move(transfers), std::move(failed)});
  }
  work_.notify_one();
}

void Process::serve() {
  std::unique_lock guard(mutex_);
  while (true) {
    const auto has_call = [&] { return !calls_.empty(); };
    if (driven_.empty()) {
      work_.wait(guard, [&] { return has_call() || !driven_.empty(); });
    } else {
      work_.wait_for(guard, kNap, has_call);
    }
    const std::vector<Driven> failed = drive_all();
    if (!failed.empty()) {
      guard.unlock();
      for (const Driven& messages : failed) messages.failed(*messages.transfers);
      guard.lock();
    }
    if (!has_call()) continue;
    std::packaged_task<void()> call = std::move(calls_.front());
    calls_.pop_front();
    guard.unlock();
    {
      const std::lock_guard mpi(lock_);
      call();
    }
    guard.lock();
  }
}

// With `mutex_`. Gives those that have failed.
std::vector<Process::Driven> Process::drive_all() {
  if (has_ended_) driven_.clear();
  std::vector<Driven> failed;
  std::erase_if(driven_, [&](const Driven& messages) {
    if (!messages.transfers->advance()) return false;
    if (messages.transfers->error() != MPI_SUCCESS) failed.push_back(messages);
    return true;
  });
  return failed;
}

bool Process::has_driven() {
  const std::lock_guard guard(mutex_);
  return !driven_.empty();
}

// MPI_Finalize is collective in Open MPI: it returns when all ranks have come to it. They may compute for
// long before; if one dies, mpirun ends the job.
void Process::finish() {
  if (is_fork() || is_given_up_ || is_finished_.exchange(true)) return;
  const auto start = std::chrono::steady_clock::now();
  while (has_driven() && std::chrono::steady_clock::now() - start < timeout_)
    std::this_thread::sleep_for(kNap);
  {
    const std::lock_guard guard(mutex_);
    driven_.clear();  // what nobody has taken stays MPI's (Transfers)
    has_ended_ = true;
  }
  if (is_ours_) hand_over([] { MPI_Finalize(); }).get();
}

// At the end of the process. Without MPI_Abort the others would wait for this rank until their timeouts.
// A fork has inherited the handler, but not the thread that serves.
void Process::end_with(int exit_code) {
  if (is_fork()) return;
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (has_ended_ || is_over) return;
  if (exit_code == 0 && !is_given_up_) return finish();
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, exit_code == 0 ? kFailure : exit_code);
}

}  // namespace shardwise::comm::mpi

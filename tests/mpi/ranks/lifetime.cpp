// Initialization and shutdown of MPI in a process. Each test runs in a job of its own.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/mpi/transport.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"
#include "tests/support/deadline.h"
#include "tests/support/waited.h"

namespace shardwise::comm::mpi {
namespace {

using namespace shardwise::testing;
using std::chrono::milliseconds;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return base::without_code(base::one_line(error));
  }
  return "no error";
}

// Rank 1 starts MPI too late for rank 0, whose MPI has started by the time of its second attempt.
TEST(Lifetime, EveryCallAfterAFailedStartThrowsItsError) {
  const Group shared = shared_group();
  const std::string too_late =
      "connect #0: timed out waiting for all ranks of the job to start MPI; rank 0 waited ";
  const ConnectOptions options = new_options(Topology::flat, milliseconds(300));
  const std::function<void()> connect_to = [&] { connect(options); };
  std::string first, second;
  if (shared.rank() == 0) first = error_of(connect_to);
  shared.barrier();
  if (shared.rank() == 1) {
    EXPECT_THROW(connect(options), base::CommError);
  }
  shared.barrier();
  if (shared.rank() != 0) return;
  second = error_of(connect_to);
  EXPECT_EQ(first.find(too_late), 0u) << first;
  expect_waited_for_timeout(first, /*rank=*/0, /*timeout_s=*/0.3);
  EXPECT_EQ(second, first);
}

// The program's MPI calls could run concurrently with those of MPI's thread.
TEST(Lifetime, AProgramThatInitializesMpiForSerializedCallsIsRefused) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  ASSERT_EQ(level, MPI_THREAD_SERIALIZED);
  EXPECT_EQ(error_of([] { connect(new_options(Topology::flat)); }),
            "connect: a program that initializes MPI itself must request MPI_THREAD_MULTIPLE; got level 2");
  MPI_Finalize();
}

int exit_code_of_fork = -1;

/// Runs after the exit handler of MPI's Process, which is registered later, and before those of the
/// libraries, in which a fork of a process with threads might hang.
void leave_fork() {
  if (exit_code_of_fork >= 0) _exit(exit_code_of_fork);
}

/// Returns waitpid's status; kills the child and returns -1 if it does not exit.
int status_of(pid_t child) {
  int status = 0;
  const base::Stopwatch since_start;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (since_start.seconds() > scaled_s(5)) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return status;
}

TEST(Lifetime, AForkExitsNormally) {
  ASSERT_EQ(std::atexit(leave_fork), 0);
  const Group group = connect(new_options(Topology::flat));
  for (const int code : {0, 1}) {
    group.barrier();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      exit_code_of_fork = code;
      std::exit(code);
    }
    const int status = status_of(child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == code) << code << " " << status;
  }
  group.barrier();
}

// Rank 0 waits in one thread for a group that rank 1 never joins.
TEST(Lifetime, GroupsAreCreatedByOneThreadAtATime) {
  const Group group = connect(new_options(Topology::flat));
  const ConnectOptions options = new_options(Topology::flat, std::chrono::seconds(2)),
                       more = new_options(Topology::flat);
  if (group.rank() == 0) {
    std::thread late([&] { EXPECT_NE(error_of([&] { connect(options); }), "no error"); });
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_EQ(error_of([&] { connect(more); }),
              "connect: multi-node groups must be created by one thread at a time; got group " + more.name +
                  " while another is being created");
    late.join();
  }
  group.barrier();
}

// Rank 1 stops after the ranks have exchanged their PeerInfo. MPI's call never returns on rank 0.
TEST(Lifetime, ARankThatStopsWhileAGroupIsCreatedIsAnError) {
  const Group shared = shared_group();
  connect(new_options(Topology::flat));  // starts MPI, which may be slow on a busy machine
  const ConnectOptions options = new_options(Topology::flat, std::chrono::seconds(1));
  Membership membership =
      exchange_peer_info(Process::get({options.rank, options.world_size, options.timeout}), options);
  if (shared.rank() == 0) {
    const std::string error = error_of([&] { make_communicators(membership, options); });
    EXPECT_TRUE(error.starts_with("connect #0: a rank of group " + options.name +
                                  " stopped while the group was created; rank 0 waited ") &&
                error.ends_with(" s of 1 s"))
        << error;
    EXPECT_EQ(error_of([&] {
                connect(new_options(Topology::flat));
              }).find("connect #0: an MPI call has not returned since an earlier error"),
              0u);
  }
  shared.barrier();
}

TEST(Lifetime, MessageBytesMustFitAnInt) {
  const Group group = connect(new_options(Topology::flat));
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    ConnectOptions options = new_options(Topology::flat);
    options.message_bytes = bytes;
    EXPECT_EQ(error_of([&] { connect(options); }),
              "connect: message_bytes must be from 1 to 2147483647; got " + std::to_string(bytes));
  }
  group.barrier();
}

constexpr milliseconds kTestTimeout{5000};  // includes the start of MPI

constexpr int64_t kLong = 3'000'000;  // beyond the eager limit of MPI

c10::intrusive_ptr<C10dBackend> new_backend(milliseconds timeout) {
  const ConnectOptions options = new_options(Topology::flat, timeout);
  return c10::make_intrusive<C10dBackend>(std::make_shared<Transport>(options, rendezvous(options)));
}

TEST(Lifetime, ShutdownDropsUnreceivedMessages) {
  const auto backend = new_backend(kTestTimeout);
  std::vector<at::Tensor> x = {value({kLong}, 0, at::kFloat)};
  if (backend->getRank() == 0) backend->send(x, /*to=*/1, /*tag=*/0);
  backend->barrier({})->wait();
  shutdown();
}

TEST(Lifetime, ShutdownWaitsForABusyRank) {
  const auto backend = new_backend(kTestTimeout);
  backend->barrier({})->wait();
  if (backend->getRank() == 1) std::this_thread::sleep_for(kTestTimeout + std::chrono::seconds(1));
  shutdown();
}

// Rank 1 waits in shared memory, without MPI. The job ends when rank 0 exits.
TEST(Lifetime, ShutdownTimesOutIfARankNeverCallsIt) {
  const Group shared = shared_group();
  const auto backend = new_backend(kTestTimeout);
  backend->barrier({})->wait();
  if (backend->getRank() == 0) {
    const std::string error = error_of([] { shutdown(); });
    EXPECT_EQ(error.find("shutdown #0: timed out waiting for all ranks to shut MPI down; rank 0 waited "), 0u)
        << error;
    expect_waited_for_timeout(error, /*rank=*/0, /*timeout_s=*/10);
    EXPECT_EQ(error_of([&] { backend->barrier({})->wait(); }).find("shutdown #0: MPI has been shut down"),
              0u);
  }
  shared.barrier();
}

/// Returns the number of calls of a fork that did not throw the error of a fork.
int try_calls_of_fork(C10dBackend& backend, c10d::Work& received) {
  const auto is_refused = [](const std::function<void()>& call, const std::string& text) {
    return error_of(call).find(text) == 0;
  };
  const std::string of_mpi = "MPI: only the process that started it may use it; got a call in process";
  int wrong = !is_refused([&] { backend.barrier({})->wait(); },
                          "barrier: only the process that connected the group is its rank");
  wrong += !is_refused([&] { received.isCompleted(); }, of_mpi);
  wrong += !is_refused([&] { received.wait(kNoTimeout); }, of_mpi);
  backend.abort("by a fork");
  return wrong;
}

// Two threads of a rank, and a fork of it, call the group while rank 1 is late. The fork inherits a receive.
TEST(Lifetime, SecondThreadsAndForksAreRefused) {
  const auto backend = new_backend(std::chrono::seconds(20));
  const Group shared = shared_group();
  backend->barrier({})->wait();
  if (backend->getRank() == 0) {
    std::thread other([&] {
      while (backend->getSequenceNumberForGroup() == 1) std::this_thread::yield();
      EXPECT_EQ(
          error_of([&] { backend->barrier({})->wait(); }),
          "barrier: a group runs one call at a time; got it while allreduce of this rank is in flight on "
          "another thread; use a group per thread");
      shared.barrier();
    });
    std::vector<at::Tensor> x = {value({5}, 0, at::kFloat)};
    backend->allreduce(x, {})->wait();
    other.join();
  } else {
    shared.barrier();
    std::vector<at::Tensor> x = {value({5}, 0, at::kFloat)};
    backend->allreduce(x, {})->wait();
  }
  const int other = 1 - backend->getRank();
  std::vector<at::Tensor> sent = {value({5}, 1, at::kFloat)}, message = {at::empty({5})};
  const auto received = backend->recv(message, other, /*tag=*/0);
  const pid_t child = fork();
  if (child == 0) _exit(try_calls_of_fork(*backend, *received));
  EXPECT_EQ(status_of(child), 0);
  backend->barrier({})->wait();
  backend->send(sent, other, /*tag=*/0)->wait();
  received->wait(kNoTimeout);
  EXPECT_TRUE(message[0].equal(sent[0]));
}

// An MPI call has not returned in time, and this thread locks MPI.
TEST(Lifetime, BackgroundTransfersThatCannotProgressAreReported) {
  const Membership membership = rendezvous(new_options(Topology::flat));
  Process& process = *membership.process;
  const auto transfers = std::make_shared<Transfers>(process, kUnsplit);
  const auto byte = std::make_shared<char>();
  transfers->retain(byte);
  transfers->receive(byte.get(), 1, {membership.data, 1 - membership.rank});
  std::promise<int> reported;
  process.complete_in_background(transfers,
                                 [&](const Transfers& failed) { reported.set_value(failed.error()); });
  EXPECT_FALSE(process.run([] { std::this_thread::sleep_for(milliseconds(50)); }, milliseconds(1)));
  std::unique_lock<std::timed_mutex> lock;
  while (!lock) lock = process.try_lock();
  std::future<int> error = reported.get_future();
  ASSERT_EQ(error.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_NE(error.get(), MPI_SUCCESS);
}

TEST(Lifetime, AfterShutdownEveryCallThrows) {
  const auto backend = new_backend(std::chrono::seconds(20));
  const int other = 1 - backend->getRank();
  std::vector<at::Tensor> x = {value({kLong}, 0, at::kFloat)}, dropped = {at::empty({kLong})};
  auto received = backend->recv(x, other, /*tag=*/0), abandoned = backend->recv(dropped, other, /*tag=*/0);
  backend->barrier({})->wait();
  shutdown();
  const std::function<void()> calls[] = {
      [&] { backend->barrier({})->wait(); },       [&] { backend->allreduce(x, {})->wait(); },
      [&] { backend->send(x, other, 0)->wait(); }, [&] { backend->recv(x, other, 0)->wait(); },
      [&] { received->wait(kNoTimeout); },
  };
  for (const auto& call : calls)
    EXPECT_EQ(error_of(call).find("shutdown #0: MPI has been shut down in this process; rank"), 0u)
        << error_of(call);
  EXPECT_EQ(error_of([] { connect(new_options(Topology::flat)); }),
            "connect: MPI can be started only once per process; got a group after shutdown");
  abandoned.reset();
  backend->shutdown();
  backend->abort();
}

}  // namespace
}  // namespace shardwise::comm::mpi

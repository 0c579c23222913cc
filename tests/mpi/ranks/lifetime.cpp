// The start and the end of MPI in a process: each of these tests is run by a job of its own.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/mpi/transport.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::comm::mpi {
namespace {

using namespace shardwise::testing;
using std::chrono::milliseconds;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return base::one_line(error);
  }
  return "no error";
}

// Rank 1 comes too late for rank 0, whose MPI has started by the time of its second try.
TEST(Lifetime, AFailedStartStaysTheReason) {
  const Group apart_from_mpi = shared_group();
  const std::string too_late =
      "connect #0: not all ranks of the job came to start MPI; rank 0 waited 0.30 s of 0 s";
  const Options options = new_options(Layout::flat, milliseconds(300));
  const std::function<void()> connect_to = [&] { connect(options); };
  std::string first = too_late, second = too_late;
  if (apart_from_mpi.rank() == 0) first = error_of(connect_to);
  apart_from_mpi.barrier();
  if (apart_from_mpi.rank() == 1) {
    EXPECT_THROW(connect(options), base::CommError);
  }
  apart_from_mpi.barrier();
  if (apart_from_mpi.rank() == 0) second = error_of(connect_to);
  EXPECT_EQ(first, too_late);
  EXPECT_EQ(second, too_late);
}

// The program's own calls of MPI would meet those of MPI's thread here.
TEST(Lifetime, AProgramThatStartsMpiForOneThreadAtATimeIsRefused) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  ASSERT_EQ(level, MPI_THREAD_SERIALIZED);
  EXPECT_EQ(error_of([] { connect(new_options(Layout::flat)); }),
            "connect: a program that starts MPI itself asks for MPI_THREAD_MULTIPLE; got level 2");
  MPI_Finalize();
}

int exit_code_of_fork = -1;

/// Runs after the handler of MPI's Process, which is younger, and before those of the libraries, which a fork
/// of a process with threads might not live through.
void leave_fork() {
  if (exit_code_of_fork >= 0) _exit(exit_code_of_fork);
}

/// waitpid's status; -1, and the child is killed, when it does not end.
int status_of(pid_t child) {
  int status = 0;
  const auto start = std::chrono::steady_clock::now();
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(5)) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return status;
}

TEST(Lifetime, AForkEndsByItself) {
  ASSERT_EQ(std::atexit(leave_fork), 0);
  const Group group = connect(new_options(Layout::flat));
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

// Rank 0 waits in one thread for a group that rank 1 never comes to.
TEST(Lifetime, GroupsAreMadeByOneThreadAtATime) {
  const Group group = connect(new_options(Layout::flat));
  const Options options = new_options(Layout::flat, std::chrono::seconds(2)),
                more = new_options(Layout::flat);
  if (group.rank() == 0) {
    std::thread late([&] { EXPECT_NE(error_of([&] { connect(options); }), "no error"); });
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_EQ(error_of([&] { connect(more); }),
              "connect: groups across hosts are made by one thread at a time; got group " + more.name +
                  " while another is made");
    late.join();
  }
  group.barrier();
}

TEST(Lifetime, MessagesAreOfAtLeastOneByteAndOfWhatMpiCounts) {
  const Group group = connect(new_options(Layout::flat));
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    Options options = new_options(Layout::flat);
    options.message_bytes = bytes;
    EXPECT_EQ(error_of([&] { connect(options); }),
              "connect: message_bytes must be from 1 to 2147483647; got " + std::to_string(bytes));
  }
  group.barrier();
}

constexpr milliseconds kTimeoutOfAll{5000};  // of the start too

constexpr int64_t kLong = 3'000'000;  // beyond what MPI sends before it is received

c10::intrusive_ptr<Backend> new_backend(milliseconds timeout) {
  const Options options = new_options(Layout::flat, timeout);
  return c10::make_intrusive<Backend>(std::make_shared<Transport>(options, meet(options)));
}

TEST(Lifetime, AMessageThatNobodyTakesIsGivenUpInTheEnd) {
  const auto backend = new_backend(kTimeoutOfAll);
  std::vector<at::Tensor> x = {value({kLong}, 0, at::kFloat)};
  if (backend->getRank() == 0) backend->send(x, /*to=*/1, /*tag=*/0);
  backend->barrier({})->wait();
  finish();
}

TEST(Lifetime, TheEndWaitsForABusyRank) {
  const auto backend = new_backend(kTimeoutOfAll);
  backend->barrier({})->wait();
  if (backend->getRank() == 1) std::this_thread::sleep_for(kTimeoutOfAll + std::chrono::seconds(1));
  finish();
}

TEST(Lifetime, AfterTheEndAGroupHasErrorsOnly) {
  const auto backend = new_backend(std::chrono::seconds(20));
  const int other = 1 - backend->getRank();
  std::vector<at::Tensor> x = {value({kLong}, 0, at::kFloat)}, dropped = {at::empty({kLong})};
  auto taken = backend->recv(x, other, /*tag=*/0), left = backend->recv(dropped, other, /*tag=*/0);
  backend->barrier({})->wait();
  finish();
  const std::function<void()> calls[] = {
      [&] { backend->barrier({})->wait(); },
      [&] { backend->allreduce(x, {})->wait(); },
      [&] { backend->send(x, other, 0)->wait(); },
      [&] { backend->recv(x, other, 0)->wait(); },
      [&] { taken->wait(kNoTimeout); },
  };
  for (const auto& call : calls)
    EXPECT_EQ(error_of(call).find("finish #0: MPI has ended in this process; rank"), 0u) << error_of(call);
  EXPECT_EQ(error_of([] { connect(new_options(Layout::flat)); }),
            "connect: MPI is started once in a process; got a group after its end");
  left.reset();
  backend->shutdown();
  backend->abort();
}

}  // namespace
}  // namespace shardwise::comm::mpi

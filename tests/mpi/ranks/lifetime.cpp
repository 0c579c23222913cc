// The start and the end of MPI in a process: each of these tests is run by a job of its own.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

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
  const std::string kTooLate = "connect #0: not all ranks of the job came to start MPI; rank 0 waited 0.30 s";
  const Options options = new_options(Layout::flat, milliseconds(300));
  const auto connect_to = [&] { connect(options); };
  if (apart_from_mpi.rank() == 0) EXPECT_EQ(error_of(connect_to).find(kTooLate), 0u);
  apart_from_mpi.barrier();
  if (apart_from_mpi.rank() == 1) EXPECT_NE(error_of(connect_to), "no error");
  apart_from_mpi.barrier();
  if (apart_from_mpi.rank() == 0) EXPECT_EQ(error_of(connect_to).find(kTooLate), 0u) << error_of(connect_to);
}

constexpr int64_t kLong = 3'000'000;  // beyond what MPI sends before it is received

c10::intrusive_ptr<Backend> new_backend(milliseconds timeout) {
  const Options options = new_options(Layout::flat, timeout);
  return c10::make_intrusive<Backend>(std::make_shared<Transport>(options, meet(options)));
}

TEST(Lifetime, AMessageThatNobodyTakesIsGivenUpInTheEnd) {
  const auto backend = new_backend(milliseconds(300));
  std::vector<at::Tensor> x = {value({kLong}, 0, at::kFloat)};
  if (backend->getRank() == 0) backend->send(x, /*to=*/1, /*tag=*/0);
  backend->barrier({});
  finish();
}

TEST(Lifetime, TheEndWaitsForABusyRank) {
  const auto backend = new_backend(milliseconds(300));
  backend->barrier({});
  if (backend->getRank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
  finish();
}

TEST(Lifetime, AfterTheEndAGroupHasErrorsOnly) {
  const auto backend = new_backend(std::chrono::seconds(20));
  const int other = 1 - backend->getRank();
  std::vector<at::Tensor> x = {value({kLong}, 0, at::kFloat)}, dropped = {at::empty({kLong})};
  auto taken = backend->recv(x, other, /*tag=*/0), left = backend->recv(dropped, other, /*tag=*/0);
  backend->barrier({});
  finish();
  const std::function<void()> calls[] = {
      [&] { backend->barrier({}); },       [&] { backend->allreduce(x, {}); },
      [&] { backend->send(x, other, 0); }, [&] { backend->recv(x, other, 0); },
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

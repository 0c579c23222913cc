// The start and the end of MPI in a process: each of these tests is run by a job of its own.
#include <gtest/gtest.h>

#include "shardwise/base/error.h"
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

}  // namespace
}  // namespace shardwise::comm::mpi

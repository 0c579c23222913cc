// What a build without MPI says; linked with no_mpi.cpp in place of the rest of that directory.
#include <gtest/gtest.h>

#include "shardwise/comm/join.h"
#include "shardwise/comm/mpi/mpi.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::no_mpi_test {
namespace {

using test::error_text;

LaunchContext spread_place() {
  LaunchContext place;
  place.launcher = LaunchContext::Launcher::mpirun;
  place.world_size = 4;
  place.is_multi_node = true;
  return place;
}

TEST(NoMpi, SaysHowToGetIt) {
  EXPECT_FALSE(mpi::is_built_in());
  EXPECT_EQ(
      error_text([] {
        mpi::connect({"job", "tp", {0, 1}, 0, 2});
      }),
      "connect: ranks of several hosts are joined by Open MPI, which this build lacks; got 2 ranks of group "
      "tp; install libopenmpi-dev and build again");
  EXPECT_EQ(
      error_text([] { check_nodes(spread_place(), 4); }),
      "launch: ranks of several hosts are joined by Open MPI, which this build lacks; got 4 ranks of group "
      "world; install libopenmpi-dev and build again");
  mpi::finish();
}

TEST(NoMpi, RanksOfOneHostDoNotNeedIt) {
  EXPECT_EQ(connect(spread_place(), "alone", {0}).size(), 1);
  EXPECT_NO_THROW(check_nodes(LaunchContext(), 4));
}

}  // namespace
}  // namespace shardwise::comm::no_mpi_test

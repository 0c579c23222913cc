// The errors of a build without MPI; linked with no_mpi.cpp instead of the rest of that directory.
#include <gtest/gtest.h>

#include "shardwise/comm/mpi/mpi.h"
#include "shardwise/launch/process_group.h"
#include "tests/support/error_text.h"

namespace shardwise::launch::no_mpi_test {
namespace {

using test::error_text;

LaunchContext multi_node_context() {
  LaunchContext context;
  context.launcher = LaunchContext::Launcher::mpirun;
  context.world_size = 4;
  context.is_multi_node = true;
  return context;
}

TEST(NoMpi, ErrorsNameTheMissingPackage) {
  EXPECT_FALSE(comm::mpi::is_built_in());
  EXPECT_EQ(
      error_text([] {
        comm::mpi::connect({"job", "tp", {0, 1}, 0, 2});
      }),
      "connect: multi-node groups need Open MPI; this build was configured without it; got 2 ranks of group "
      "tp; install libopenmpi-dev and build again");
  EXPECT_EQ(
      error_text([] { check_nodes(multi_node_context(), 4); }),
      "launch: multi-node groups need Open MPI; this build was configured without it; got 4 ranks of group "
      "world; install libopenmpi-dev and build again");
  comm::mpi::shutdown();
}

TEST(NoMpi, RanksOfOneNodeConnect) {
  EXPECT_EQ(connect_group(multi_node_context(), "alone", {0}).size(), 1);
  EXPECT_NO_THROW(check_nodes(LaunchContext(), 4));
}

}  // namespace
}  // namespace shardwise::launch::no_mpi_test

// The program that mpi_test starts through mpirun: gtest on every rank, `mpi_ranks endless
// flat|hierarchical`, or `mpi_ranks never_finalize`. The last line of a rank reports whether its tests
// passed, because mpirun's exit code does not distinguish a failed test from a test that breaks the job on
// purpose.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <numeric>

#include "shardwise/base/error.h"
#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/shm.h"
#include "shardwise/launch/process_group.h"
#include "tests/coverage/counts.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::testing {

using comm::mpi::Topology;

uint64_t simulated_node_id(const launch::LaunchContext& context) {
  return comm::node_id() ^ (uint64_t(context.node) << 48);
}

comm::mpi::ConnectOptions new_options(Topology topology, std::chrono::milliseconds timeout) {
  static int made = 0;
  const launch::LaunchContext context = launch::launch_context_from_env();
  std::vector<int> ranks(size_t(context.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  comm::mpi::ConnectOptions options(context.job, "test-" + std::to_string(made++), ranks, context.rank,
                                    context.world_size);
  options.node = simulated_node_id(context);
  options.topology = topology;
  options.timeout = timeout;
  return options;
}

comm::mpi::Membership rendezvous(const comm::mpi::ConnectOptions& options) {
  comm::mpi::Process& process = comm::mpi::Process::get({options.rank, options.world_size, options.timeout});
  comm::mpi::Membership membership = comm::mpi::exchange_peer_info(process, options);
  comm::mpi::make_communicators(membership, options);
  return membership;
}

const comm::Group& group_of(Topology topology) {
  static std::map<Topology, comm::Group> groups;
  const auto found = groups.find(topology);
  if (found != groups.end()) return found->second;
  return groups.emplace(topology, comm::mpi::connect(new_options(topology))).first->second;
}

comm::Group shared_group() {
  static int made = 0;
  const launch::LaunchContext context = launch::launch_context_from_env();
  return comm::shm::connect(
      {context.job + "/shared-" + std::to_string(made++), context.rank, context.world_size});
}

/// Waits for all ranks to print their last line, since the first rank that exits with a broken group ends the
/// job. Uses MPI, which may be broken, only on several real nodes.
void wait_for_others() {
  try {
    if (launch::launch_context_from_env().is_multi_node) {
      comm::mpi::connect(new_options(Topology::flat, std::chrono::seconds(2)));
    } else {
      shared_group().barrier();
    }
    // NOLINTNEXTLINE(bugprone-empty-catch): all ranks have printed their last line.
  } catch (const c10::Error&) {
  }
}

/// Runs all_reduces until one fails.
int run_endless(Topology topology) {
  try {
    comm::mpi::connect(new_options(Topology::flat));  // starts MPI, which may be slow on a busy machine
    const comm::Group group = comm::mpi::connect(new_options(topology, std::chrono::seconds(2)));
    group.barrier();
    std::fprintf(stderr, "ready %d rank %d\n", getpid(), group.rank());
    while (true) group.all_reduce(at::full({3000}, 1.f));
  } catch (const base::CommError& error) {
    std::fprintf(stderr, "%s\n", base::one_line(error).c_str());
    return 1;
  }
}

/// Returns on rank 0 only.
int run_never_finalize() {
  const comm::Group group = comm::mpi::connect(new_options(Topology::flat, std::chrono::seconds(3)));
  group.barrier();
  std::fprintf(stderr, "ready %d rank %d\n", getpid(), group.rank());
  while (group.rank() == 1) pause();
  return 0;
}

}  // namespace shardwise::testing

int main(int argc, char** argv) {
  using shardwise::comm::mpi::Topology;
  if (argc == 3 && std::string(argv[1]) == "endless")
    return shardwise::testing::run_endless(argv[2] == std::string("flat") ? Topology::flat
                                                                          : Topology::hierarchical);
  if (argc == 2 && argv[1] == std::string("never_finalize")) return shardwise::testing::run_never_finalize();
  testing::InitGoogleTest(&argc, argv);
  const int rank = shardwise::launch::launch_context_from_env().rank;
  const int failed = RUN_ALL_TESTS();
  const int count = testing::UnitTest::GetInstance()->successful_test_count();
  std::fprintf(stderr, "rank %d: %s\n", rank, failed ? "failed" : count == 0 ? "ran nothing" : "passed");
  shardwise::testing::write_counts();  // mpirun kills the ranks of a job that ends by MPI_Abort
  shardwise::testing::wait_for_others();
  return failed;
}

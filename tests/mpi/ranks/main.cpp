// The program that mpi_test starts through mpirun: gtest on every rank, or `mpi_ranks endless flat|by_host`.
// The last line of a rank says how its tests went, as mpirun's exit code cannot tell a test that failed from
// one that breaks the job on purpose.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <numeric>

#include "shardwise/base/error.h"
#include "shardwise/comm/join.h"
#include "shardwise/comm/node.h"
#include "shardwise/comm/shm/shm.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::testing {

using comm::mpi::Layout;

uint64_t own_pretended_host(const comm::LaunchContext& place) {
  return comm::own_node() ^ (uint64_t(place.host) << 48);
}

comm::mpi::Options new_options(Layout layout, std::chrono::milliseconds timeout) {
  static int made = 0;
  const comm::LaunchContext place = comm::launch_context_from_env();
  std::vector<int> ranks(size_t(place.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  comm::mpi::Options options(place.job, "test-" + std::to_string(made++), ranks, place.rank,
                             place.world_size);
  options.host = own_pretended_host(place);
  options.layout = layout;
  options.timeout = timeout;
  return options;
}

comm::mpi::Meeting meet(const comm::mpi::Options& options) {
  comm::mpi::Process& process = comm::mpi::Process::of({options.rank, options.world_size, options.timeout});
  comm::mpi::Meeting meeting = comm::mpi::greet(process, options);
  comm::mpi::make_communicators(meeting, options);
  return meeting;
}

const comm::Group& group_of(Layout layout) {
  static std::map<Layout, comm::Group> groups;
  const auto found = groups.find(layout);
  if (found != groups.end()) return found->second;
  return groups.emplace(layout, comm::mpi::connect(new_options(layout))).first->second;
}

comm::Group shared_group() {
  static int made = 0;
  const comm::LaunchContext place = comm::launch_context_from_env();
  return comm::shm::connect({place.job + "/shared-" + std::to_string(made++), place.rank, place.world_size});
}

/// The first rank that ends with a broken group ends the job, which is what the others shall not miss to say.
/// Not by MPI where that can be helped: it may be what is broken.
void wait_for_others() {
  try {
    if (comm::launch_context_from_env().is_multi_node) {
      comm::mpi::connect(new_options(Layout::flat, std::chrono::seconds(2)));
    } else {
      shared_group().barrier();
    }
    // NOLINTNEXTLINE(bugprone-empty-catch): all have said what they can.
  } catch (const c10::Error&) {
  }
}

/// Sums for ever, until something fails.
int run_endless(Layout layout) {
  try {
    comm::mpi::connect(new_options(Layout::flat));  // MPI's start takes as long as the machine is busy
    const comm::Group group = comm::mpi::connect(new_options(layout, std::chrono::seconds(2)));
    group.barrier();
    std::fprintf(stderr, "ready %d rank %d\n", getpid(), group.rank());
    while (true) group.all_reduce(at::full({3000}, 1.f));
  } catch (const base::CommError& error) {
    std::fprintf(stderr, "%s\n", base::one_line(error).c_str());
    return 1;
  }
}

}  // namespace shardwise::testing

int main(int argc, char** argv) {
  using shardwise::comm::mpi::Layout;
  if (argc == 3 && std::string(argv[1]) == "endless")
    return shardwise::testing::run_endless(argv[2] == std::string("flat") ? Layout::flat : Layout::by_host);
  testing::InitGoogleTest(&argc, argv);
  const int rank = shardwise::comm::launch_context_from_env().rank;
  const int failed = RUN_ALL_TESTS();
  const int count = testing::UnitTest::GetInstance()->successful_test_count();
  std::fprintf(stderr, "rank %d: %s\n", rank, failed ? "failed" : count == 0 ? "ran nothing" : "passed");
  shardwise::testing::wait_for_others();
  return failed;
}

#include "shardwise/launch/affinity.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/launch/program.h"

namespace shardwise::testing::affinity_test {
namespace {

namespace fs = std::filesystem;

// Identifies cores by the kernel's list of the hardware threads of each core.
std::set<std::string> cores_of(const cpu_set_t& set) {
  std::set<std::string> cores;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &set)) continue;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list");
    std::string siblings;
    cores.insert(std::getline(file, siblings) ? siblings : std::to_string(i));
  }
  return cores;
}

cpu_set_t allowed() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

int expected_cores() {
  return std::min<int>(cores_of(allowed()).size(), std::ceil(launch::cpu_quota()));
}

struct Bound {
  int threads;
  std::set<int> processors;
};

std::vector<Bound> bind_in_job(int ranks, const std::vector<std::string>& environment = {}) {
  Program program({LAUNCH_JOB, std::to_string(ranks), "bind"}, {.environment = environment});
  EXPECT_EQ(program.wait(), 0) << program.errors();
  std::vector<Bound> result(ranks);
  for (std::string line : program.wait_for_lines("bound", ranks)) {
    line = line.substr(line.find("rank ", line.starts_with("[") ? 5 : 0));
    std::istringstream words(line);
    std::string word;
    int rank;
    Bound bound;
    words >> word >> rank >> word >> word >> bound.threads >> word;
    for (int processor; words >> processor;) bound.processors.insert(processor);
    result.at(rank) = bound;
  }
  return result;
}

TEST(AffinityOfCores, ranks_get_disjoint_cores) {
  const int cores = expected_cores();
  if (cores < 2) GTEST_SKIP() << "one core cannot be divided";
  for (int ranks = 2; ranks <= std::min(cores, 4); ++ranks) {
    std::set<int> all_bound;
    size_t total = 0;
    for (const Bound& bound : bind_in_job(ranks)) {
      EXPECT_EQ(bound.threads, cores / ranks);
      EXPECT_GE(static_cast<int>(bound.processors.size()), bound.threads);
      all_bound.insert(bound.processors.begin(), bound.processors.end());
      total += bound.processors.size();
    }
    const cpu_set_t all = allowed();
    EXPECT_EQ(all_bound.size(), total) << "shared by two ranks";
    EXPECT_EQ(static_cast<int>(total), CPU_COUNT(&all));
  }
}

// Confines this process, and the processes that it starts, to its first processor.
class OneCore {
 public:
  OneCore() {
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  const cpu_set_t before_ = allowed();
};

TEST(Affinity, more_ranks_than_allowed_cores_are_not_bound) {
  const OneCore confined;
  for (const Bound& bound : bind_in_job(2)) {
    EXPECT_EQ(bound.threads, 1);
    EXPECT_EQ(bound.processors.size(), 1u);
  }
}

TEST(Affinity, one_rank_has_every_allowed_core) {
  const cpu_set_t all = allowed();
  const Bound bound = bind_in_job(1)[0];
  EXPECT_EQ(bound.threads, expected_cores());
  EXPECT_EQ(static_cast<int>(bound.processors.size()), CPU_COUNT(&all));
}

TEST(Affinity, environment_variables_set_the_number_of_threads) {
  EXPECT_EQ(bind_in_job(1, {"OMP_NUM_THREADS=3"})[0].threads, 3);
  EXPECT_EQ(bind_in_job(1, {"OMP_NUM_THREADS=3", "SHARDWISE_THREADS=4"})[0].threads, 4);
  Program program({LAUNCH_JOB, "1", "bind"}, {.environment = {"SHARDWISE_THREADS=0"}});
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_NE(program.errors().find("SHARDWISE_THREADS must be an integer of at least 1; got '0'"),
            std::string::npos);
}

TEST(Affinity, too_many_threads_are_refused) {
  const int most = 4 * launch::available_cpus().cores;
  EXPECT_EQ(bind_in_job(1, {"SHARDWISE_THREADS=" + std::to_string(most)})[0].threads, most);
  for (const char* variable : {"SHARDWISE_THREADS", "OMP_NUM_THREADS"}) {
    Program program({LAUNCH_JOB, "1", "bind"}, {.environment = {std::string(variable) + "=100000"}});
    EXPECT_EQ(exit_code(program.wait()), 2);
    const std::string expected = std::string(variable) + " must be at most " + std::to_string(most) +
                                 ", 4 threads for each usable core; got 100000";
    EXPECT_NE(program.errors().find(expected), std::string::npos) << program.errors();
  }
}

cpu_set_t processors(const std::vector<int>& numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int number : numbers) CPU_SET(number, &set);
  return set;
}

// The allowed processors (one core each) of every rank, and the expected share of each rank.
struct Sharing {
  std::vector<std::vector<int>> allowed;
  int quota;
  std::vector<std::pair<int, int>> shares;  // index of count
  int threads;
};

// Cores that a launcher has bound to a rank are not divided again.
TEST(CoreShare, divides_the_cores_among_ranks_with_the_same_processors) {
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7}, low{0, 1, 2, 3}, high{4, 5, 6, 7};
  const Sharing cases[] = {
      {{all}, 99, {{0, 1}}, 8},                                           // one rank has the machine
      {{all, all}, 99, {{0, 2}, {1, 2}}, 4},                              // not bound
      {{low, high}, 99, {{0, 1}, {0, 1}}, 4},                             // each rank bound by its launcher
      {{low, high, low, high}, 99, {{0, 2}, {0, 2}, {1, 2}, {1, 2}}, 2},  // two ranks to a socket
      {{low, {4}}, 99, {{0, 1}, {0, 1}}, 1},               // the same number of threads on every rank
      {{all, all}, 2, {{0, 2}, {1, 2}}, 1},                // the quota of a container
      {{{0}, {0}, {0}}, 99, {{0, 3}, {1, 3}, {2, 3}}, 1},  // more ranks than cores
  };
  for (const char* variable : {"SHARDWISE_THREADS", "OMP_NUM_THREADS"}) unsetenv(variable);
  for (const Sharing& c : cases) {
    std::vector<launch::AvailableCpus> available;
    for (const auto& numbers : c.allowed) {
      available.push_back({processors(numbers), static_cast<int>(numbers.size()), c.quota});
    }
    for (size_t rank = 0; rank < available.size(); ++rank) {
      const launch::CoreShare share = launch::share_out(available, static_cast<int>(rank));
      EXPECT_EQ(std::pair(share.index, share.count), c.shares[rank]) << &c - cases << " rank " << rank;
      EXPECT_EQ(share.threads, c.threads) << &c - cases << " rank " << rank;
    }
  }
}

class Quota : public ::testing::Test {
 protected:
  const fs::path root_ = fs::temp_directory_path() / ("shardwise-quota-" + std::to_string(getpid()));

  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  double quota(const std::string& cgroups) const {
    write("self", cgroups);
    return launch::cpu_quota(root_ / "self", root_);
  }
};

TEST_F(Quota, is_the_smallest_of_the_group_and_its_ancestors) {
  write("a/b/cpu.max", "400000 100000\n");
  write("a/cpu.max", "250000 100000\n");
  write("cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 2.5);
  EXPECT_DOUBLE_EQ(quota("0::/a\n"), 2.5);
  EXPECT_GT(quota("0::/\n"), 1e5);
}

// A container often sees its own group as the root while /proc still names the path on the host.
TEST_F(Quota, falls_back_to_the_root_if_the_path_does_not_exist) {
  write("cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/system/docker-1\n"), 1.5);
}

TEST_F(Quota, is_read_from_cgroup_version_1) {
  write("cpu/x/cpu.cfs_quota_us", "300000\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota("2:cpuset:/y\n1:cpu,cpuacct:/x\n0::/\n"), 3);
  EXPECT_GT(quota("2:cpuset:/x\n1:cpu:/\n"), 1e5);
}

}  // namespace
}  // namespace shardwise::testing::affinity_test

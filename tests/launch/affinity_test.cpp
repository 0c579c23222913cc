#include "shardwise/comm/affinity.h"

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

#include "shardwise/comm/affinity_quota.h"
#include "tests/launch/program.h"

namespace shardwise::testing::affinity_test {
namespace {

namespace fs = std::filesystem;

// The kernel's own word for which hardware threads make a core.
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
  return std::min<int>(cores_of(allowed()).size(), std::ceil(comm::cpu_quota()));
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

TEST(Affinity, ranks_get_disjoint_cores) {
  const int cores = expected_cores();
  if (cores < 2) GTEST_SKIP() << "one core cannot be shared out";
  for (int ranks = 2; ranks <= std::min(cores, 4); ++ranks) {
    std::set<int> taken;
    size_t total = 0;
    for (const Bound& bound : bind_in_job(ranks)) {
      EXPECT_EQ(bound.threads, cores / ranks);
      EXPECT_GE(static_cast<int>(bound.processors.size()), bound.threads);
      taken.insert(bound.processors.begin(), bound.processors.end());
      total += bound.processors.size();
    }
    const cpu_set_t all = allowed();
    EXPECT_EQ(taken.size(), total) << "shared by two ranks";
    EXPECT_EQ(static_cast<int>(total), CPU_COUNT(&all));
  }
}

// Confines this process, and those that it starts, to its first core.
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

TEST(Affinity, variables_set_the_threads) {
  EXPECT_EQ(bind_in_job(1, {"OMP_NUM_THREADS=3"})[0].threads, 3);
  EXPECT_EQ(bind_in_job(1, {"OMP_NUM_THREADS=3", "SHARDWISE_THREADS=5"})[0].threads, 5);
  Program program({LAUNCH_JOB, "1", "bind"}, {.environment = {"SHARDWISE_THREADS=0"}});
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_NE(program.errors().find("SHARDWISE_THREADS is a whole number, at least 1; got '0'"),
            std::string::npos);
}

cpu_set_t processors(const std::vector<int>& numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int number : numbers) CPU_SET(number, &set);
  return set;
}

// Allowed processors, one core each, of every rank; and how each shares them.
struct Sharing {
  std::vector<std::vector<int>> allowed;
  int quota;
  std::vector<std::pair<int, int>> shares;  // index of count
  int threads;
};

// What a starter has bound is not divided again.
TEST(CoreShare, is_of_those_who_may_use_the_same) {
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7}, low{0, 1, 2, 3}, high{4, 5, 6, 7};
  const Sharing cases[] = {
      {{all}, 99, {{0, 1}}, 8},                                           // one rank has the machine
      {{all, all}, 99, {{0, 2}, {1, 2}}, 4},                              // bound by nobody
      {{low, high}, 99, {{0, 1}, {0, 1}}, 4},                             // bound by its starter, each rank
      {{low, high, low, high}, 99, {{0, 2}, {0, 2}, {1, 2}, {1, 2}}, 2},  // two ranks to a socket
      {{low, {4}}, 99, {{0, 1}, {0, 1}}, 1},                              // as many threads on every rank
      {{all, all}, 2, {{0, 2}, {1, 2}}, 1},                               // a container's quota
      {{{0}, {0}, {0}}, 99, {{0, 3}, {1, 3}, {2, 3}}, 1},                 // more ranks than cores
  };
  for (const char* variable : {"SHARDWISE_THREADS", "OMP_NUM_THREADS"}) unsetenv(variable);
  for (const Sharing& c : cases) {
    std::vector<comm::Allowance> allowances;
    for (const auto& numbers : c.allowed) {
      allowances.push_back({processors(numbers), static_cast<int>(numbers.size()), c.quota});
    }
    for (size_t rank = 0; rank < allowances.size(); ++rank) {
      const comm::CoreShare share = comm::share_out(allowances, static_cast<int>(rank));
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
    return comm::cpu_quota(root_ / "self", root_);
  }
};

TEST_F(Quota, the_least_of_the_own_group_and_those_above) {
  write("a/b/cpu.max", "400000 100000\n");
  write("a/cpu.max", "250000 100000\n");
  write("cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 2.5);
  EXPECT_DOUBLE_EQ(quota("0::/a\n"), 2.5);
  EXPECT_GT(quota("0::/\n"), 1e5);
}

// A container often sees its own group as the topmost while /proc still names the host's path.
TEST_F(Quota, a_path_that_is_not_there_counts_from_the_top) {
  write("cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/system/docker-1\n"), 1.5);
}

TEST_F(Quota, version_one) {
  write("cpu/x/cpu.cfs_quota_us", "300000\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota("2:cpuset:/y\n1:cpu,cpuacct:/x\n0::/\n"), 3);
  EXPECT_GT(quota("2:cpuset:/x\n1:cpu:/\n"), 1e5);
}

}  // namespace
}  // namespace shardwise::testing::affinity_test

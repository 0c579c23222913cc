// Several groups at once: many ranks on few cores, two meshes of the same ranks, and groups that are used by
// separate threads at the same time.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <mutex>

#include "shardwise/base/error.h"
#include "tests/comm/mixed.h"
#include "tests/comm/threads.h"
#include "tests/support/extent.h"

namespace shardwise::testing::many_groups_test {
namespace {

/// Runs `body` on `ranks` threads. An error fails the test.
void on_ranks_of_threads(int ranks, const std::function<void(int rank, const std::string& job)>& body) {
  on_threads(ranks, [&](int rank, const std::string& job) {
    at::set_num_threads(1);
    try {
      body(rank, job);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << base::one_line(error);
    }
  });
}

/// Binds this process and the threads that it starts to two cores, in this scope.
class TwoCores {
 public:
  TwoCores() {
    cpu_set_t two;
    CPU_ZERO(&two);
    sched_getaffinity(0, sizeof(before_), &before_);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++core) {
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &two);
    }
    sched_setaffinity(0, sizeof(two), &two);
  }
  ~TwoCores() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

// If 64 waiting ranks were to spin, a collective would need a time slice of each, and time out.
TEST(ManyRanks, RunOnTwoCores) {
  const TwoCores two_cores;
  for (const int ranks : {16, 64}) {
    on_ranks_of_threads(ranks, [&](int rank, const std::string& job) {
      const Groups groups = connect_world(options(job, rank, ranks, /*timeout_ms=*/60'000));
      const comm::Group& group = groups.front().group;
      for (int i = 0; i < (is_full() ? 2000 : 20); ++i) {
        at::Tensor x = group.empty({i % 2 == 0 ? 10 : 3000}, at::kLong).fill_(rank + i);
        group.all_reduce_(x);
        EXPECT_TRUE(x.eq(int64_t(ranks) * (ranks - 1) / 2 + int64_t(ranks) * i).all().item<bool>());
      }
      for (const CollectiveCall& call : collective_calls()) {
        if (call.name == "all_to_all" || call.name == "c10d scatter" || call.name == "c10d gather" ||
            call.name == "share_shard" || call.name == "barrier") {
          const Content content{at::kInt, comm::Reduce::sum, ranks};
          call.check({groups.front(), content, InputLayout::unregistered, 1000,
                      /*even=*/!call.traits.supports_uneven});
        }
      }
    });
  }
}

// Two users in one process, each with its own world, dp and tp groups, whose calls alternate randomly.
TEST(TwoMeshes, AreIndependentOnTheSameRanks) {
  const int steps = is_full() ? 20'000 : 300;
  on_ranks_of_threads(4, [&](int rank, const std::string& job) {
    const Groups one = connect_mesh(options(job + "-one", rank, 4, 60'000)),
                 two = connect_mesh(options(job + "-two", rank, 4, 60'000));
    Mixed first(one, 41), second(two, 42);
    std::mt19937 random(43);
    for (int i = 0; i < steps; ++i) (random() % 2 == 0 ? first : second).step();
  });
}

// Each group has its own thread on each rank, so that a rank is in several collectives at the same time.
TEST(GroupsOnThreads, RunConcurrently) {
  const int steps = is_full() ? 20'000 : 200;
  on_ranks_of_threads(4, [&](int rank, const std::string& job) {
    const Groups groups = connect_mesh(options(job, rank, 4, 60'000));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < groups.size(); ++i) {
      threads.emplace_back([&, i] {
        at::set_num_threads(1);
        const Groups group = {groups[i]};
        try {
          Mixed(group, 44 + unsigned(i)).run(steps);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ", group " << i << ": " << base::one_line(error);
          group.front().backend->abort();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// One of two groups of the same ranks is aborted; the other still works.
TEST(GroupsOnThreads, AbortIndependently) {
  on_ranks_of_threads(3, [&](int rank, const std::string& job) {
    const Groups one = connect_world(options(job + "-one", rank, 3)),
                 two = connect_world(options(job + "-two", rank, 3));
    Mixed(one, 45).run(20);
    one.front().backend->abort();
    EXPECT_THROW(one.front().group.barrier(), base::CommError);
    Mixed(two, 46).run(100);
  });
}

}  // namespace
}  // namespace shardwise::testing::many_groups_test

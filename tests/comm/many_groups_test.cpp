// Several groups at once: many ranks on few cores, two meshes over the same ranks, groups that are used by
// threads of their own at the same time.
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

/// Calls `body` on so many threads; an error is the case's.
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

/// Of this process and the threads it starts, for as long as it lives.
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

// A collective of 64 ranks that spin takes a time slice for each of them: the timeout would end it.
TEST(ManyRanks, ShareTwoCores) {
  const TwoCores two_cores;
  for (const int ranks : {16, 64}) {
    on_ranks_of_threads(ranks, [&](int rank, const std::string& job) {
      const Groups groups = join_world(options(job, rank, ranks, /*timeout_ms=*/60'000));
      const comm::Group& group = groups.front().group;
      for (int i = 0; i < (is_full() ? 2000 : 20); ++i) {
        at::Tensor x = group.empty({i % 2 == 0 ? 10 : 3000}, at::kLong).fill_(rank + i);
        group.all_reduce_(x);
        EXPECT_TRUE(x.eq(int64_t(ranks) * (ranks - 1) / 2 + int64_t(ranks) * i).all().item<bool>());
      }
      for (const Form& form : forms()) {
        if (form.name == "all_to_all" || form.name == "c10d scatter" || form.name == "c10d gather" ||
            form.name == "share_shard" || form.name == "barrier") {
          const Content content{at::kInt, comm::Reduce::sum, ranks};
          form.check({groups.front(), content, Layout::foreign, 1000, /*even=*/!form.traits.cuts});
        }
      }
    });
  }
}

// Two engines in one process, each with its own world, dp and tp: calls on them take turns as they like.
TEST(TwoMeshes, OfTheSameRanksAreIndependent) {
  const int steps = is_full() ? 20'000 : 300;
  on_ranks_of_threads(4, [&](int rank, const std::string& job) {
    const Groups one = join_mesh(options(job + "-one", rank, 4, 60'000)),
                 two = join_mesh(options(job + "-two", rank, 4, 60'000));
    Mixed first(one, 41), second(two, 42);
    std::mt19937 turns(43);
    for (int i = 0; i < steps; ++i) (turns() % 2 == 0 ? first : second).step();
  });
}

// Every group has a thread of its own on every rank, so that a rank is in several collectives at a time.
TEST(GroupsOnThreads, AreUsedAtTheSameTime) {
  const int steps = is_full() ? 20'000 : 200;
  on_ranks_of_threads(4, [&](int rank, const std::string& job) {
    const Groups groups = join_mesh(options(job, rank, 4, 60'000));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < groups.size(); ++i) {
      threads.emplace_back([&, i] {
        at::set_num_threads(1);
        const Groups own = {groups[i]};
        try {
          Mixed(own, 44 + unsigned(i)).run(steps);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ", group " << i << ": " << base::one_line(error);
          own.front().backend->abort();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// One of two groups of the same ranks is broken: the other goes on.
TEST(GroupsOnThreads, OutliveEachOther) {
  on_ranks_of_threads(3, [&](int rank, const std::string& job) {
    const Groups one = join_world(options(job + "-one", rank, 3)),
                 two = join_world(options(job + "-two", rank, 3));
    Mixed(one, 45).run(20);
    one.front().backend->abort();
    EXPECT_THROW(one.front().group.barrier(), base::CommError);
    Mixed(two, 46).run(100);
  });
}

}  // namespace
}  // namespace shardwise::testing::many_groups_test

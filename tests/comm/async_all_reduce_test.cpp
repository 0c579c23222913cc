// Asynchronous all_reduce: its bits and counts are those of all_reduce_, whatever is called before wait().
#include "shardwise/comm/work.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/parallel/late_backend.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::async_all_reduce_test {
namespace {

using namespace shardwise::testing;

class AsyncAllReduce : public ::testing::TestWithParam<int> {};

/// Sizes around a page of fp32, and 4 MB plus 3 elements.
constexpr int64_t kNumels[] = {0, 1, 7, 1023, 1024, 1025, (int64_t{1} << 20) + 3};

at::Tensor copy_in_heap(const Group& group, const at::Tensor& x) {
  return group.empty(x.sizes(), x.scalar_type()).copy_(x);
}

void expect_equal_to_all_reduce(const Group& group) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t numel : kNumels) {
      const at::Tensor input = value({numel}, group.rank(), dtype).mul(0.37);  // the sum rounds
      at::Tensor synchronous = copy_in_heap(group, input);
      const at::Tensor asynchronous = copy_in_heap(group, input);
      Counters before = group.counters();
      group.all_reduce_(synchronous);
      const Counters sync_counts = group.counters() - before;
      before = group.counters();
      group.all_reduce_async_(asynchronous)->wait();
      const Counters async_counts = group.counters() - before;
      EXPECT_TRUE(at::equal(synchronous, asynchronous)) << numel << " of " << c10::toString(dtype);
      EXPECT_EQ(async_counts[Op::all_reduce].calls, sync_counts[Op::all_reduce].calls);
      EXPECT_EQ(async_counts[Op::all_reduce].bytes, sync_counts[Op::all_reduce].bytes);
      EXPECT_EQ(async_counts.total().bytes, async_counts[Op::all_reduce].bytes);
    }
  }
}

TEST_P(AsyncAllReduce, GivesTheBitsAndCountsOfAllReduce) {
  on_ranks(GetParam(), [](Group group) {
    expect_equal_to_all_reduce(group);
    expect_equal_to_all_reduce(group.without_symmetric_heap());
  });
}

// Each rank writes the sum of its slice to its peers, and copies nothing else.
TEST_P(AsyncAllReduce, CopiesOneSliceToEachPeer) {
  on_ranks(GetParam(), [](Group group) {
    const at::Tensor x = group.empty({1023}, at::kFloat).fill_(1);
    group.all_reduce_async_(x)->wait();
    const int64_t slice = base::Split::even("message", 1023, group.size()).range(group.rank()).size();
    EXPECT_EQ(group.counters()[Op::all_reduce].copied_bytes, slice * 4 * (group.size() - 1));
  });
}

// Two are in flight and complete in reverse order, with other collectives and allocations in between.
TEST_P(AsyncAllReduce, AllowsOtherCollectivesBeforeWait) {
  on_ranks(GetParam(), [](Group group) {
    for (int round = 0; round < 50; ++round) {
      const int t = group.size();
      const at::Tensor a = group.empty({5000}, at::kFloat).fill_(group.rank() + 1);
      const auto work_of_a = group.all_reduce_async_(a);
      const at::Tensor b = group.empty({300}, at::kFloat).fill_(10 * (group.rank() + 1));
      const auto work_of_b = group.all_reduce_async_(b);
      at::Tensor c = group.empty({4000}, at::kFloat).fill_(2);
      group.all_reduce_(c);
      work_of_b->wait();
      group.barrier();
      work_of_a->wait();
      const float ranks = float(t * (t + 1)) / 2;
      ASSERT_TRUE(at::equal(a, at::full_like(a, ranks))) << "round " << round;
      ASSERT_TRUE(at::equal(b, at::full_like(b, 10 * ranks))) << "round " << round;
      ASSERT_TRUE(at::equal(c, at::full_like(c, 2.f * float(t)))) << "round " << round;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AsyncAllReduce, ::testing::Values(1, 2, 3, 4, 8));

TEST(Work, WaitCompletesTheSumInPlace) {
  on_threads(3, [](int rank, const std::string& job) {
    for (const Group& group : {shm::connect(options(job, rank, 3)), late_group(job + "-late", rank, 3)}) {
      const at::Tensor x = group.empty({1000}, at::kFloat).fill_(rank + 1);
      group.all_reduce_async_(x)->wait();
      EXPECT_TRUE(at::equal(x, at::full({1000}, 6.f)));
    }
  });
}

TEST(Work, NeedsAContiguousInputFromGroupEmpty) {
  on_ranks(2, [](Group group) {
    EXPECT_THROW(group.all_reduce_async_(at::ones({4})), c10::ValueError);
    EXPECT_THROW(group.all_reduce_async_(group.empty({4, 4}, at::kFloat).t()), c10::ValueError);
  });
}

/// Returns on how many of two ranks `body` throws a CommError.
int failures(const std::function<void(int rank, const Group& group)>& body) {
  std::atomic<int> failed{0};
  on_threads(2, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 2));
    try {
      body(rank, group);
    } catch (const base::CommError&) {
      ++failed;
    }
  });
  return failed;
}

at::Tensor ones(const Group& group, int64_t numel = 1000) {
  return group.empty({numel}, at::kFloat).fill_(1);
}

// The ranks wait for two equally large all_reduces in different orders: an error, never a wrong sum, whatever
// the operations' numbers.
TEST(Work, WaitsInDifferentOrdersFailOnBothRanks) {
  for (int before = 0; before < 8; ++before) {
    const auto in_different_orders = [&](int rank, const Group& group) {
      for (int i = 0; i < before; ++i) group.all_reduce_async_(ones(group))->wait();
      const auto first = group.all_reduce_async_(ones(group));
      if (rank == 0) first->wait();
      const auto second = group.all_reduce_async_(ones(group));
      if (rank == 1) first->wait();
      second->wait();
    };
    EXPECT_EQ(failures(in_different_orders), 2) << before << " operations before";
  }
}

// Copies of a group number their operations together.
TEST(Work, WaitsOfGroupCopiesInDifferentOrdersFailOnBothRanks) {
  const auto in_different_orders = [](int rank, const Group& group) {
    const auto work = group.all_reduce_async_(ones(group));
    const auto work_of_copy = group.with_new_counters().all_reduce_async_(ones(group));
    (rank == 0 ? work : work_of_copy)->wait();
    (rank == 0 ? work_of_copy : work)->wait();
  };
  EXPECT_EQ(failures(in_different_orders), 2);
}

// Below and above the one-shot limit.
TEST(Work, DoesNotMatchASynchronousAllReduce) {
  for (const int64_t numel : {12, 5000}) {
    const auto one_asynchronous = [&](int rank, const Group& group) {
      at::Tensor x = ones(group, numel);
      if (rank == 0) return group.all_reduce_(x);
      group.all_reduce_async_(x)->wait();
    };
    EXPECT_EQ(failures(one_asynchronous), 2) << numel;
  }
}

TEST(Work, MayBeDroppedOnAllRanks) {
  on_ranks(3, [](Group group) {
    for (int round = 0; round < 5; ++round) group.all_reduce_async_(group.empty({1000}, at::kFloat));
    const at::Tensor x = group.empty({1000}, at::kFloat).fill_(1);
    group.all_reduce_async_(x)->wait();
    EXPECT_TRUE(at::equal(x, at::full({1000}, 3.f)));
  });
}

TEST(Work, WaitThrowsIfAPeerAborts) {
  on_threads(3, [](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 3));
    const auto work = group.all_reduce_async_(group.empty({1000}, at::kFloat).fill_(1));
    if (rank == 2) return group.abort("aborted on purpose");
    EXPECT_THROW(work->wait(), base::CommError);
  });
}

}  // namespace
}  // namespace shardwise::comm::async_all_reduce_test

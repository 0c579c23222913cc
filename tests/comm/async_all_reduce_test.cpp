// An all_reduce in two parts: its sum, bits and counts are those of one in one, whatever is called in
// between.
#include "shardwise/comm/work.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/parallel/late_backend.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::begun_sum_test {
namespace {

using namespace shardwise::testing;

class BegunSums : public ::testing::TestWithParam<int> {};

/// Pages of fp32 and those around them; 4 MB and 3 elements.
constexpr int64_t kNumels[] = {0, 1, 7, 1023, 1024, 1025, (int64_t{1} << 20) + 3};

at::Tensor from_empty(const Group& group, const at::Tensor& x) {
  return group.empty(x.sizes(), x.scalar_type()).copy_(x);
}

void expect_as_in_one(const Group& group) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t numel : kNumels) {
      const at::Tensor own = value({numel}, group.rank(), dtype).mul(0.37);  // sums that round
      at::Tensor whole = from_empty(group, own);
      const at::Tensor parts = from_empty(group, own);
      Counters before = group.counters();
      group.all_reduce_(whole);
      const Counters in_one = group.counters() - before;
      before = group.counters();
      group.all_reduce_async_(parts)->wait();
      const Counters in_two = group.counters() - before;
      EXPECT_TRUE(at::equal(whole, parts)) << numel << " of " << c10::toString(dtype);
      EXPECT_EQ(in_two[Op::all_reduce].calls, in_one[Op::all_reduce].calls);
      EXPECT_EQ(in_two[Op::all_reduce].bytes, in_one[Op::all_reduce].bytes);
      EXPECT_EQ(in_two.total().bytes, in_two[Op::all_reduce].bytes);
    }
  }
}

TEST_P(BegunSums, HaveTheBitsAndCountsOfAnAllReduce) {
  on_ranks(GetParam(), [](Group group) {
    expect_as_in_one(group);
    expect_as_in_one(group.without_symmetric_heap());
  });
}

/// Each rank sums its slice into its peers' terms, and copies nothing else.
TEST_P(BegunSums, CopyTheOwnSliceToEachPeer) {
  on_ranks(GetParam(), [](Group group) {
    const at::Tensor x = group.empty({1023}, at::kFloat).fill_(1);
    group.all_reduce_async_(x)->wait();
    const int64_t own = base::Split::even("message", 1023, group.size()).range(group.rank()).size();
    EXPECT_EQ(group.counters()[Op::all_reduce].copied_bytes, own * 4 * (group.size() - 1));
  });
}

// Two at once, which end in the order in which they did not begin, with other collectives and new memory
// between.
TEST_P(BegunSums, LetOthersPassInBetween) {
  on_ranks(GetParam(), [](Group group) {
    for (int round = 0; round < 50; ++round) {
      const int t = group.size();
      const at::Tensor a = group.empty({5000}, at::kFloat).fill_(group.rank() + 1);
      const auto sum_of_a = group.all_reduce_async_(a);
      const at::Tensor b = group.empty({300}, at::kFloat).fill_(10 * (group.rank() + 1));
      const auto sum_of_b = group.all_reduce_async_(b);
      at::Tensor c = group.empty({4000}, at::kFloat).fill_(2);
      group.all_reduce_(c);
      sum_of_b->wait();
      group.barrier();
      sum_of_a->wait();
      const float ranks = float(t * (t + 1)) / 2;
      ASSERT_TRUE(at::equal(a, at::full_like(a, ranks))) << "round " << round;
      ASSERT_TRUE(at::equal(b, at::full_like(b, 10 * ranks))) << "round " << round;
      ASSERT_TRUE(at::equal(c, at::full_like(c, 2.f * float(t)))) << "round " << round;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BegunSums, ::testing::Values(1, 2, 3, 4, 8));

TEST(Work, IsTheSumInPlace) {
  on_threads(3, [](int rank, const std::string& job) {
    for (const Group& group : {shm::connect(options(job, rank, 3)), late_group(job + "-late", rank, 3)}) {
      const at::Tensor x = group.empty({1000}, at::kFloat).fill_(rank + 1);
      group.all_reduce_async_(x)->wait();
      EXPECT_TRUE(at::equal(x, at::full({1000}, 6.f)));
    }
  });
}

TEST(Work, IsRefusedWherePeersCannotReadTheTerms) {
  on_ranks(2, [](Group group) {
    EXPECT_THROW(group.all_reduce_async_(at::ones({4})), c10::ValueError);
    EXPECT_THROW(group.all_reduce_async_(group.empty({4, 4}, at::kFloat).t()), c10::ValueError);
  });
}

/// On how many of two ranks `body` ends with a CommError.
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

// Two of one size, which a rank ends in another order than its peer: never a wrong sum, whatever their
// numbers.
TEST(Work, IsNotTakenForAnother) {
  for (int before = 0; before < 8; ++before) {
    const auto in_other_orders = [&](int rank, const Group& group) {
      for (int i = 0; i < before; ++i) group.all_reduce_async_(ones(group))->wait();
      const auto first = group.all_reduce_async_(ones(group));
      if (rank == 0) first->wait();
      const auto second = group.all_reduce_async_(ones(group));
      if (rank == 1) first->wait();
      second->wait();
    };
    EXPECT_EQ(failures(in_other_orders), 2) << before << " sums before";
  }
}

// Copies of a group count their sums together.
TEST(Work, IsNotTakenForOneOfACopy) {
  const auto in_other_orders = [](int rank, const Group& group) {
    const auto own = group.all_reduce_async_(ones(group));
    const auto copys = group.with_new_counters().all_reduce_async_(ones(group));
    (rank == 0 ? own : copys)->wait();
    (rank == 0 ? copys : own)->wait();
  };
  EXPECT_EQ(failures(in_other_orders), 2);
}

// In one shot, and above.
TEST(Work, IsNotTakenForAWholeOne) {
  for (const int64_t numel : {12, 5000}) {
    const auto one_in_parts = [&](int rank, const Group& group) {
      at::Tensor x = ones(group, numel);
      if (rank == 0) return group.all_reduce_(x);
      group.all_reduce_async_(x)->wait();
    };
    EXPECT_EQ(failures(one_in_parts), 2) << numel;
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

TEST(Work, EndsWithAnErrorWhenAPeerIsGone) {
  on_threads(3, [](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 3));
    const auto sum = group.all_reduce_async_(group.empty({1000}, at::kFloat).fill_(1));
    if (rank == 2) return group.abort("gone on purpose");
    EXPECT_THROW(sum->wait(), base::CommError);
  });
}

}  // namespace
}  // namespace shardwise::comm::begun_sum_test

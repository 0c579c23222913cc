// Memory is never reused while a peer may read it: random lifetimes and delays over many collectives, seeded.
//
// Every rank overwrites whatever it allocates at once. A block reused too early would change a peer's input.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>

#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::reuse_test {
namespace {

using namespace shardwise::testing;
using base::Split;

constexpr int64_t kLargest = 6000;

/// One rank's part. `plan` is seeded alike on all ranks: what happens. `own` differs: how long it takes.
class Program {
 public:
  Program(Group group, unsigned seed)
      : group_(std::move(group)), plan_(seed), own_(seed * 31 + unsigned(group_.rank())) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      dawdle();
      switch (plan_() % 5) {
        case 0:
          share_shard(step);
          break;
        case 1:
          reduce_scatter(step);
          break;
        case 2:
          all_reduce(step);
          break;
        case 3:
          all_gather(step);
          break;
        default:
          allocate();
      }
      while (exposures_.size() > plan_() % 6) exposures_.pop_front();
    }
  }

 private:
  struct Held {
    std::shared_ptr<PeerShards> exposed;
    Split split;
    float value;
  };

  void dawdle() {
    if (own_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 300));
  }
  at::Tensor scribbled(int64_t numel, double value) { return group_.empty({numel}, at::kFloat).fill_(value); }

  void share_shard(int step) {
    const Split split = Split::even("x", int64_t(plan_() % kLargest), group_.size());
    exposures_.push_back(
        {group_.share_shard(scribbled(split.range(group_.rank()).size(), step + group_.rank()), split), split,
         float(step)});
    if (plan_() % 2 == 0) read(exposures_[plan_() % exposures_.size()]);
  }
  void read(const Held& held) {
    dawdle();
    for (int peer = 0; peer < group_.size(); ++peer) {
      EXPECT_TRUE(
          equals(held.exposed->get(peer), at::full({held.split.range(peer).size()}, held.value + peer)));
    }
  }
  // The input dies with the call, while peers may still read it.
  void reduce_scatter(int step) {
    const Split split = Split::even("x", int64_t(plan_() % kLargest), group_.size());
    const at::Tensor sum = group_.reduce_scatter(scribbled(split.size(), step), split);
    EXPECT_TRUE(equals(sum, at::full({split.range(group_.rank()).size()}, float(step * group_.size()))));
  }
  void all_reduce(int step) {
    at::Tensor x = scribbled(int64_t(plan_() % kLargest), step);
    group_.all_reduce_(x);
    EXPECT_TRUE(equals(x, at::full({x.numel()}, float(step * group_.size()))));
  }
  // The input is overwritten right after the call.
  void all_gather(int step) {
    const Split split = Split::even("x", int64_t(plan_() % kLargest), group_.size());
    at::Tensor shard = scribbled(split.range(group_.rank()).size(), step);
    const at::Tensor whole = group_.all_gather(shard, split);
    shard.fill_(-1);
    EXPECT_TRUE(equals(whole, at::full({split.size()}, float(step))));
  }
  void allocate() {
    for (unsigned i = own_() % 4; i > 0; --i) scribbled(int64_t(own_() % kLargest), -1);
  }

  Group group_;
  std::mt19937 plan_, own_;
  std::deque<Held> exposures_;
};

class Reuse : public ::testing::TestWithParam<int> {};

TEST_P(Reuse, NeverTouchesWhatAPeerMayRead) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    on_ranks(GetParam(), [&](Group group) { Program(group, seed).run(300); });
  }
}

TEST_P(Reuse, MemoryIsGivenBackAndStaysBounded) {
  on_ranks(GetParam(), [&](Group group) {
    const Split split = Split::even("x", 1 << 16, group.size());
    const int64_t before = group.symmetric_heap()->live_bytes();
    for (int step = 0; step < 200; ++step) {
      const at::Tensor x = group.empty({1 << 16}, at::kFloat).fill_(1);
      group.reduce_scatter(x, split);
    }
    EXPECT_EQ(group.symmetric_heap()->live_bytes(), before);
    EXPECT_EQ(group.symmetric_heap()->peak_bytes() - before, 4 << 16);
  });
}

TEST_P(Reuse, TensorsOutliveTheirGroup) {
  at::Tensor left;
  on_ranks(GetParam(), [&](Group group) {
    if (group.rank() == 0) left = group.empty({100}, at::kFloat).fill_(3);
  });
  EXPECT_TRUE(equals(left, at::full({100}, 3.f)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Reuse, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace shardwise::comm::reuse_test

// Memory of the symmetric heap is not reused while a peer may read it: seeded random programs with random
// lifetimes and delays. Every rank overwrites what it allocates at once, so that a block that is reused too
// early changes a peer's input.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "tests/comm/failures.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::reuse_test {
namespace {

using namespace shardwise::testing;
using base::Split;

constexpr int64_t kLargest = 6000;

/// One rank's program. `plan_` draws the calls, equal on all ranks; `delays_` draws this rank's delays.
class Program {
 public:
  Program(Group group, unsigned seed)
      : group_(std::move(group)), plan_(seed), delays_(seed * 31 + unsigned(group_.rank())) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      sleep_randomly();
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
      while (shared_.size() > plan_() % 6) shared_.pop_front();
    }
  }

 private:
  struct Shared {
    std::shared_ptr<PeerShards> shards;
    Split split;
    float value;
  };

  void sleep_randomly() {
    if (delays_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays_() % 300));
  }
  at::Tensor filled(int64_t numel, double value) { return group_.empty({numel}, at::kFloat).fill_(value); }

  void share_shard(int step) {
    const Split split = Split::even("x", int64_t(plan_() % kLargest), group_.size());
    shared_.push_back(
        {group_.share_shard(filled(split.range(group_.rank()).size(), step + group_.rank()), split), split,
         float(step)});
    if (plan_() % 2 == 0) read(shared_[plan_() % shared_.size()]);
  }
  void read(const Shared& shared) {
    sleep_randomly();
    for (int peer = 0; peer < group_.size(); ++peer) {
      EXPECT_TRUE(
          equals(shared.shards->get(peer), at::full({shared.split.range(peer).size()}, shared.value + peer)));
    }
  }
  // The input is freed when the call returns, while peers may still read it.
  void reduce_scatter(int step) {
    const Split split = Split::even("x", int64_t(plan_() % kLargest), group_.size());
    const at::Tensor sum = group_.reduce_scatter(filled(split.size(), step), split);
    EXPECT_TRUE(equals(sum, at::full({split.range(group_.rank()).size()}, float(step * group_.size()))));
  }
  void all_reduce(int step) {
    at::Tensor x = filled(int64_t(plan_() % kLargest), step);
    group_.all_reduce_(x);
    EXPECT_TRUE(equals(x, at::full({x.numel()}, float(step * group_.size()))));
  }
  // The input is overwritten right after the call.
  void all_gather(int step) {
    const Split split = Split::even("x", int64_t(plan_() % kLargest), group_.size());
    at::Tensor shard = filled(split.range(group_.rank()).size(), step);
    const at::Tensor full = group_.all_gather(shard, split);
    shard.fill_(-1);
    EXPECT_TRUE(equals(full, at::full({split.size()}, float(step))));
  }
  void allocate() {
    for (unsigned i = delays_() % 4; i > 0; --i) filled(int64_t(delays_() % kLargest), -1);
  }

  Group group_;
  std::mt19937 plan_, delays_;
  std::deque<Shared> shared_;
};

class Reuse : public ::testing::TestWithParam<int> {};

TEST_P(Reuse, NeverTouchesWhatAPeerMayRead) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    on_ranks(GetParam(), [&](Group group) { Program(group, seed).run(300); });
  }
}

TEST_P(Reuse, FreedMemoryIsReused) {
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
  at::Tensor tensor;
  on_ranks(GetParam(), [&](Group group) {
    if (group.rank() == 0) tensor = group.empty({100}, at::kFloat).fill_(3);
  });
  EXPECT_TRUE(equals(tensor, at::full({100}, 3.f)));
}

/// Shares a row of each rank, or one row of rank 0, and returns what the last rank drops between two barriers
/// and the others after them; then the error of each rank's second barrier.
std::vector<std::string> errors_after_an_early_drop(
    int ranks, int64_t rows, const std::function<std::shared_ptr<void>(PeerShards&, int rank)>& held) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  on_threads(ranks, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, ranks));
    const Split split = Split::even("x", rows, ranks);
    auto shards = group.share_shard(group.empty({split.range(rank).size()}, at::kFloat).fill_(rank), split);
    std::shared_ptr<void> kept = held ? held(*shards, rank) : shards;
    shards.reset();
    group.barrier();
    if (rank == ranks - 1) kept.reset();
    failure_of([&] { group.barrier(); }, errors[size_t(rank)]);
  });
  return errors;
}

// Else a rank that still reads could read what another rank has put there since.
TEST_P(Reuse, ADropBetweenOtherCollectivesThanThePeersIsAnErrorOnAllRanks) {
  const int ranks = GetParam();
  const auto tensor_of = [=](int shift) {
    return [=](PeerShards& shards, int rank) {
      return std::make_shared<at::Tensor>(shards.get((rank + shift) % ranks));
    };
  };
  for (const int64_t rows : {ranks, 1}) {  // with 1 row, all shards but one have no elements
    for (const auto& errors : {errors_after_an_early_drop(ranks, rows, nullptr),
                               errors_after_an_early_drop(ranks, rows, tensor_of(0)),
                               errors_after_an_early_drop(ranks, rows, tensor_of(1))}) {
      for (const std::string& error : errors)
        EXPECT_NE(error.find("holds other shared shards than rank"), std::string::npos) << error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Reuse, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace shardwise::comm::reuse_test

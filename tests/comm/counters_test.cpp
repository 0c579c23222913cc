// The calls, bytes and copied bytes of every collective match the formulas of counters.h on every rank.
#include <gtest/gtest.h>

#include <thread>

#include "shardwise/comm/shm/shm.h"
#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::counters_test {
namespace {

using namespace shardwise::testing;
using base::Split;

constexpr int64_t kRows = 13, kColumns = 3, kItem = 4;
constexpr int64_t kBytes = kRows * kColumns * kItem;

class CountersOf : public ::testing::TestWithParam<int> {
 protected:
  int64_t t() const { return GetParam(); }
  /// Returns what `collective` adds to the counter of `op`, and checks that it adds to no other counter.
  OpCount added(const Group& group, Op op, const std::function<void()>& collective) const {
    const Counters before = group.counters();
    collective();
    const Counters added = group.counters() - before;
    EXPECT_EQ(added.total(), added[op]) << name(op);
    EXPECT_GE(added.busy_ns, 0);
    return added[op];
  }
};

int64_t row_bytes(const Split& split, int rank) {
  return split.range(rank).size() * kColumns * kItem;
}

TEST_P(CountersOf, BytesAreWhatARankSends) {
  on_ranks(int(t()), [&](Group group) {
    const int rank = group.rank(), root = int(t()) - 1;
    const Split split = Split::even("rows", kRows, int(t()));
    const int64_t local = row_bytes(split, rank),
                  even_slice = Split::even("flat", kBytes / kItem, int(t())).range(rank).size() * kItem;
    const int64_t calls = t() > 1;
    for (const Group& path : {group, group.without_symmetric_heap()}) {
      at::Tensor x = value({kRows, kColumns}, rank, at::kFloat);
      const at::Tensor shard = x.slice(0, split.range(rank).begin, split.range(rank).end);
      const auto check = [&](Op op, int64_t bytes, const std::function<void()>& collective) {
        const OpCount count = added(path, op, collective);
        EXPECT_EQ(count.calls, calls) << name(op);
        EXPECT_EQ(count.bytes, bytes) << name(op) << " rank " << rank;
      };
      check(Op::broadcast, rank == root ? kBytes * (t() - 1) : 0, [&] { path.broadcast_(x, root); });
      check(Op::all_gather, local * (t() - 1), [&] { path.all_gather(shard, split); });
      check(Op::reduce_scatter, kBytes - local, [&] { path.reduce_scatter(x, split); });
      check(Op::all_reduce, even_slice * (t() - 1) + kBytes - even_slice, [&] { path.all_reduce(x); });
      check(Op::barrier, 0, [&] { path.barrier(); });
      at::Tensor even = value({2 * t(), kColumns}, rank, at::kFloat);
      const int64_t local_even = 2 * kColumns * kItem, all_even = t() * local_even;
      check(Op::scatter, rank == root ? all_even - local_even : 0, [&] { path.scatter(even, root); });
      check(Op::gather, rank == root ? 0 : local_even, [&] { path.gather(even.narrow(0, 0, 2), root); });
      check(Op::all_to_all, all_even - local_even, [&] { path.all_to_all(even); });
    }
  });
}

TEST_P(CountersOf, SharedShardsCountEachReadAndCopyNothing) {
  on_ranks(int(t()), [&](Group group) {
    const Split split = Split::even("rows", kRows, int(t()));
    const int64_t local = row_bytes(split, group.rank()), calls = t() > 1;
    const at::Tensor shard = group.empty({split.range(group.rank()).size(), kColumns}, at::kFloat).fill_(1);
    std::shared_ptr<PeerShards> shards;
    EXPECT_EQ(added(group, Op::all_gather, [&] { shards = group.share_shard(shard, split); }),
              (OpCount{calls, local * (t() - 1), 0}));
    EXPECT_EQ(added(group, Op::all_gather, [&] { shards->get(0); }), OpCount());
    EXPECT_EQ(added(group, Op::all_gather, [&] { group.record_peer_read(shard); }),
              (OpCount{calls, local * (t() - 1), 0}));
    const at::Tensor unregistered = at::full({split.range(group.rank()).size(), kColumns}, 1.f);
    const OpCount copied =
        added(group, Op::all_gather, [&] { shards = group.share_shard(unregistered, split); });
    EXPECT_EQ(copied, (OpCount{calls, local * (t() - 1), calls * local}));
  });
}

TEST_P(CountersOf, CopiedBytesAreStagedGatheredOrWrittenToPeers) {
  on_ranks(int(t()), [&](Group group) {
    if (t() == 1) return;
    const int rank = group.rank();
    const int64_t large = 5003, small = shm::one_shot_limit(group)->bytes / kItem;
    const int64_t slice = Split::even("flat", large, int(t())).range(rank).size() * kItem;
    const auto copied = [&](Op op, const std::function<void()>& collective) {
      return added(group, op, collective).copied_bytes;
    };
    at::Tensor in_heap = group.empty({large}, at::kFloat).fill_(1), unregistered = at::full({large}, 1.f);
    EXPECT_EQ(copied(Op::all_reduce, [&] { group.all_reduce_(in_heap); }), slice * (t() - 1));
    EXPECT_EQ(copied(Op::all_reduce, [&] { group.all_reduce_(unregistered); }),
              t() <= 4 ? large * kItem : slice * (t() - 1) + 2 * large * kItem);
    EXPECT_EQ(copied(Op::all_reduce, [&] { group.all_reduce(in_heap); }), slice * (t() - 1) + large * kItem);
    at::Tensor few = group.empty({small}, at::kFloat).fill_(1);
    EXPECT_EQ(copied(Op::all_reduce, [&] { group.all_reduce_(few); }), small * kItem);

    const Split split = Split::even("rows", large, int(t()));
    EXPECT_EQ(copied(Op::reduce_scatter, [&] { group.reduce_scatter(in_heap, split); }), 0);
    EXPECT_EQ(copied(Op::reduce_scatter, [&] { group.reduce_scatter(unregistered, split); }), large * kItem);
    const at::Tensor shard = in_heap.slice(0, split.range(rank).begin, split.range(rank).end);
    EXPECT_EQ(copied(Op::all_gather, [&] { group.all_gather(shard, split); }), large * kItem);
    EXPECT_EQ(copied(Op::all_gather, [&] { group.all_gather(shard.clone(), split); }),
              large * kItem + int64_t(shard.nbytes()));
    EXPECT_EQ(copied(Op::broadcast, [&] { group.broadcast_(unregistered, 0); }), large * kItem);
  });
}

TEST(CountersOfMessages, CountACallOnBothSidesAndThePayloadAtTheSender) {
  on_ranks(2, [](Group group) {
    for (const Group& path : {group, group.without_symmetric_heap()}) {
      for (const int64_t numel : {3, 3000}) {
        at::Tensor x = value({numel}, 0, at::kFloat);
        const Counters before = path.counters();
        if (group.rank() == 0) {
          path.send(x, /*to=*/1);
        } else {
          path.recv_(x, /*from=*/0);
        }
        const Counters added = path.counters() - before;
        EXPECT_EQ(added[Op::send], (OpCount{1, group.rank() == 0 ? numel * kItem : 0, numel * kItem}));
        EXPECT_EQ(added.total(), added[Op::send]);
      }
    }
  });
}

TEST(Counters, ShareShardCountsAsAllGather) {
  Counters counters;
  counters[Op::share_shard].calls = 2;
  EXPECT_EQ(counters[Op::all_gather].calls, 2);
  EXPECT_EQ(counters[Op::barrier].calls, 0);
}

TEST_P(CountersOf, NewCountersStartFromZeroOnTheSameGroup) {
  on_ranks(int(t()), [&](Group group) {
    group.barrier();
    const Group other = group.with_new_counters();
    other.barrier();
    EXPECT_EQ(other.counters()[Op::barrier].calls, int64_t(t() > 1));
    EXPECT_EQ(group.counters()[Op::barrier].calls, int64_t(t() > 1));
    group.without_symmetric_heap().barrier();
    EXPECT_EQ(group.counters()[Op::barrier].calls, 2 * int64_t(t() > 1));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CountersOf, ::testing::Values(1, 2, 3, 4));

TEST(CountersTime, IncludesWaitsForPeerShards) {
  on_ranks(2, [](Group group) {
    const Split split = Split::even("x", 2, 2);
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto shards = group.share_shard(at::full({1}, 1.f), split);
    shards->get(1);
    const Counters& counted = group.counters();
    EXPECT_TRUE(group.rank() == 1 || counted.waiting_ns > 10'000'000);
    EXPECT_GE(counted.busy_ns, counted.waiting_ns);
  });
}

}  // namespace
}  // namespace shardwise::comm::counters_test

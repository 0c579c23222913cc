// Collectives whose output is a part of their input or the reverse, and tensors that are one memory on all
// ranks: what replicas with split optimizer states use.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/comm/values.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::in_place_test {
namespace {

using namespace shardwise::testing;
using base::Range;
using base::Split;

/// Returns uneven partitions for `ranks`, also with ranks that have nothing.
std::vector<Split> uneven_splits(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  std::vector<int64_t> growing(count, 0), last(count, 0), large(count, 7000);
  std::iota(growing.begin(), growing.end(), 0);
  last.back() = 5;
  large.front() = 0;
  return {Split::of_sizes("growing", growing), Split::of_sizes("last", last), Split::of_sizes("large", large),
          Split::even("even", 4 * ranks, ranks), Split::even("nothing", 0, ranks)};
}

/// Calls `body(group, split, dtype)` for every partition, with and without the symmetric heap.
template <class Body>
void for_all(const Group& shared, const Body& body) {
  for (const Group& group : {shared, shared.without_symmetric_heap()})
    for (const Split& split : uneven_splits(group.size()))
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
        SCOPED_TRACE(split.name() + (group.has_symmetric_heap() ? " in the heap" : ""));
        body(group, split, dtype);
      }
}

at::Tensor rows_of(const at::Tensor& x, const Range& rows) {
  return x.narrow(0, rows.begin, rows.size());
}

class InPlace : public ::testing::TestWithParam<int> {};

TEST_P(InPlace, ReduceScatterSumsIntoTheRanksRowsAndLeavesTheOthers) {
  on_ranks(GetParam(), [](const Group& shared) {
    for_all(shared, [](const Group& group, const Split& split, at::ScalarType dtype) {
      const Range own = split.range(group.rank());
      const at::Tensor before = value({split.size()}, group.rank(), dtype);
      at::Tensor x = group.empty({split.size()}, dtype).copy_(before), sum = rows_of(x, own);
      group.reduce_scatter_out(sum, x, split);
      group.barrier();
      rows_of(before, own).copy_(rows_of(reduced({split.size()}, group.size(), Reduce::sum, dtype), own));
      EXPECT_TRUE(equals(x, before)) << dtype;
    });
  });
}

TEST_P(InPlace, AllGatherFillsTheOthersRows) {
  on_ranks(GetParam(), [](const Group& shared) {
    for_all(shared, [](const Group& group, const Split& split, at::ScalarType dtype) {
      const Range own = split.range(group.rank());
      const at::Tensor full = value({split.size()}, /*rank=*/0, dtype);
      at::Tensor x = group.empty({split.size()}, dtype).fill_(-1);
      rows_of(x, own).copy_(rows_of(full, own));
      group.all_gather_out(x, rows_of(x, own), split);
      EXPECT_TRUE(equals(x, full)) << dtype;
      x.fill_(-1);
      group.all_gather_out(x, rows_of(full, own), split);  // from other memory
      EXPECT_TRUE(equals(x, full)) << dtype;
    });
  });
}

TEST_P(InPlace, AllGatherCopiesOnlyTheOthersRows) {
  on_ranks(GetParam(), [](const Group& group) {
    const Split split = Split::even("rows", 1000, group.size());
    const Range own = split.range(group.rank());
    at::Tensor x = group.empty({1000}, at::kFloat);
    const Counters before = group.counters();
    group.all_gather_out(x, x.narrow(0, own.begin, own.size()), split);
    const OpCount count = (group.counters() - before)[Op::all_gather];
    EXPECT_EQ(count.bytes, own.size() * 4 * (group.size() - 1));
    EXPECT_EQ(count.copied_bytes, group.size() == 1 ? 0 : (1000 - own.size()) * 4);
  });
}

TEST_P(InPlace, AllGatherChecksTheOutput) {
  on_ranks(GetParam(), [](const Group& group) {
    at::Tensor x = group.empty({8}, at::kFloat), other = group.empty({8}, at::kDouble);
    const Split split = Split::even("rows", 8, group.size()), more = Split::even("rows", 9, group.size());
    const at::Tensor shard = x.narrow(0, 0, split.range(group.rank()).size());
    EXPECT_THROW(group.all_gather_out(x, shard, more), c10::ValueError);
    EXPECT_THROW(group.all_gather_out(other, shard, split), c10::ValueError);
  });
}

TEST_P(InPlace, ASharedTensorIsOneMemory) {
  on_ranks(GetParam(), [](const Group& group) {
    const int64_t before = group.size() == 1 ? 0 : group.symmetric_heap()->live_bytes();
    {
      const at::Tensor shared = group.empty_shared({group.size(), 3}, at::kFloat);
      shared[group.rank()].fill_(group.rank() + 1);
      group.barrier();
      for (int rank = 0; rank < group.size(); ++rank) {
        EXPECT_TRUE(at::equal(shared[rank], at::full({3}, rank + 1, at::kFloat)));
      }
      group.barrier();
      if (group.size() > 1) {
        const int64_t own = group.symmetric_heap()->live_bytes() - before;
        EXPECT_EQ(own > 0, group.rank() == 0) << "only the lowest rank has memory for it";
      }
    }
    for (int i = 0; i < 5; ++i) group.barrier();  // freed on every rank between the same collectives
    if (group.size() > 1) {
      EXPECT_EQ(group.symmetric_heap()->live_bytes(), before);
    }
  });
}

TEST(SharedTensor, NeedsASymmetricHeap) {
  on_ranks(2, [](const Group& group) {
    const std::string text =
        test::error_text([&] { group.without_symmetric_heap().empty_shared({2}, at::kFloat); });
    EXPECT_PRED2(test::contains, text, "needs a group with a symmetric heap");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InPlace, ::testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace shardwise::comm::in_place_test

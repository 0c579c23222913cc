// Every collective × dtype × ranks × size × layout, against expected values, with and without the heap.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "shardwise/comm/collective_backend.h"
#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::collectives_test {
namespace {

using namespace shardwise::testing;
using base::Split;

// Around the one-shot limit (4032 bytes), around a page, and with several blocks per slice.
constexpr int64_t kNumels[] = {0, 1, 7, 1007, 1008, 1009, 4095, 4096, 4097, 20011};

class Collectives : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  /// Calls `check(group, dtype, layout)` for all dtypes and layouts, with and without the symmetric heap.
  void on_both(const std::function<void(const Group&, at::ScalarType, InputLayout)>& check) {
    on_ranks(ranks(), [&](Group group) {
      for (const at::ScalarType dtype : kDtypes) {
        for (const InputLayout layout : kInputLayouts) {
          check(group, dtype, layout);
          check(group.without_symmetric_heap(), dtype, layout);
        }
      }
    });
  }
};

TEST_P(Collectives, AllReduceComputesSumAndMaximum) {
  std::map<std::tuple<at::ScalarType, int64_t, Reduce>, at::Tensor> all_expected;
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t numel : kNumels) {
      for (const Reduce reduce : {Reduce::sum, Reduce::max}) {
        all_expected[{dtype, numel, reduce}] = reduced({numel}, ranks(), reduce, dtype);
      }
    }
  }
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const int64_t numel : kNumels) {
      for (const Reduce reduce : {Reduce::sum, Reduce::max}) {
        const at::Tensor& expected = all_expected.at({dtype, numel, reduce});
        at::Tensor x = with_layout(group, value({numel}, group.rank(), dtype), layout);
        EXPECT_TRUE(equals(group.all_reduce(x, reduce), expected)) << numel << " " << dtype;
        EXPECT_TRUE(equals(x, value({numel}, group.rank(), dtype))) << "the input was changed";
        group.all_reduce_(x, reduce);
        EXPECT_TRUE(equals(x, expected)) << numel << " " << dtype;
      }
    }
  });
}

// One-shot and two-shot, with slices that end within a SIMD vector.
TEST_P(Collectives, AllReduceSupportsEveryReductionOfADtype) {
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const Reduce reduce : kReduces) {
      for (const int64_t numel : {7, 5003}) {
        at::Tensor x = with_layout(group, value({numel}, group.rank(), dtype), layout);
        if (supports(reduce, dtype)) {
          group.all_reduce_(x, reduce);
          EXPECT_TRUE(equals(x, reduced({numel}, ranks(), reduce, dtype))) << name(reduce) << " " << dtype;
        } else if (ranks() > 1) {
          EXPECT_THROW(group.all_reduce_(x, reduce), c10::ValueError) << name(reduce) << " " << dtype;
        }
      }
    }
  });
}

struct RowSplit {
  int64_t rows;
  int64_t granule;
};
// Even, uneven, and with empty shards at the end; of a few bytes and of several pages.
constexpr RowSplit kRowSplits[] = {{0, 1}, {1, 1}, {12, 1}, {13, 1}, {10, 4}, {3, 1}, {1200, 1}, {1201, 400}};

TEST_P(Collectives, AllGatherConcatenatesAlongAnyDim) {
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const auto [rows, granule] : kRowSplits) {
      const Split split = Split::even("rows", rows, ranks(), granule);
      const base::Range range = split.range(group.rank());
      const at::Tensor full = value({rows, 5}, /*rank=*/0, dtype);
      const at::Tensor shard = with_layout(group, full.slice(0, range.begin, range.end), layout);
      EXPECT_TRUE(equals(group.all_gather(shard, split), full)) << rows << " " << dtype;
      const at::Tensor transposed = with_layout(group, full.t().slice(1, range.begin, range.end), layout);
      EXPECT_TRUE(equals(group.all_gather(transposed, split, /*dim=*/-1), full.t())) << rows << " " << dtype;
    }
  });
}

TEST_P(Collectives, ReduceScatterReturnsThisRanksRangeOfTheSum) {
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const auto [rows, granule] : kRowSplits) {
      const Split split = Split::even("rows", rows, ranks(), granule);
      const base::Range range = split.range(group.rank());
      const at::Tensor expected =
          reduced({rows, 5}, ranks(), Reduce::sum, dtype).slice(0, range.begin, range.end);
      const at::Tensor x = with_layout(group, value({rows, 5}, group.rank(), dtype), layout);
      EXPECT_TRUE(equals(group.reduce_scatter(x, split), expected)) << rows << " " << dtype;
      at::Tensor out = with_layout(group, at::zeros(expected.sizes(), dtype), layout);
      group.reduce_scatter_out(out, x, split);
      EXPECT_TRUE(equals(out, expected)) << rows << " " << dtype;
      const at::Tensor transposed = with_layout(group, value({rows, 5}, group.rank(), dtype).t(), layout);
      EXPECT_TRUE(equals(group.reduce_scatter(transposed, split, /*dim=*/1), expected.t()))
          << rows << " " << dtype;
    }
  });
}

TEST_P(Collectives, BroadcastCopiesTheRootsValues) {
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const int64_t numel : kNumels) {
      const int root = static_cast<int>(numel % ranks());
      at::Tensor x = with_layout(group, value({numel}, group.rank(), dtype), layout);
      group.broadcast_(x, root);
      EXPECT_TRUE(equals(x, value({numel}, root, dtype))) << numel << " " << dtype;
    }
  });
}

TEST_P(Collectives, ScatterAndGatherMoveEqualRowBlocks) {
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const int64_t rows : {0, 1, 5, 700}) {
      const int root = static_cast<int>(rows % ranks());
      const at::Tensor full = value({rows * ranks(), 3}, root, dtype);
      const at::Tensor shard = full.narrow(0, group.rank() * rows, rows);
      const at::Tensor x = with_layout(group, value({rows * ranks(), 3}, group.rank(), dtype), layout);
      EXPECT_TRUE(equals(group.scatter(x, root), shard)) << rows << " " << dtype;
      const at::Tensor gathered = group.gather(with_layout(group, shard, layout), root);
      EXPECT_EQ(gathered.defined(), group.rank() == root);
      EXPECT_TRUE(group.rank() != root || equals(gathered, full)) << rows << " " << dtype;
    }
  });
}

TEST_P(Collectives, AllToAllTransposesRowBlocks) {
  on_both([&](const Group& group, at::ScalarType dtype, InputLayout layout) {
    for (const int64_t rows : {0, 1, 5, 700}) {
      const at::Tensor x = with_layout(group, value({rows * ranks(), 3}, group.rank(), dtype), layout);
      const at::Tensor y = group.all_to_all(x);
      for (int peer = 0; peer < ranks(); ++peer) {
        const at::Tensor theirs =
            value({rows * ranks(), 3}, peer, dtype).narrow(0, group.rank() * rows, rows);
        EXPECT_TRUE(equals(y.narrow(0, peer * rows, rows), theirs)) << rows << " " << dtype;
      }
    }
  });
}

// Ranks learn from each other that they must copy: of the ranks' tensors, some are in the symmetric heap.
TEST_P(Collectives, AllReduceSumsTensorsInAndOutsideTheSymmetricHeap) {
  on_ranks(ranks(), [&](Group group) {
    for (const int64_t numel : {2000, 300'000}) {  // in a slot, and in several chunks
      const at::Tensor expected = reduced({numel}, ranks(), Reduce::sum);
      for (int mask = 0; mask < 1 << ranks(); ++mask) {
        const bool is_in_heap = (mask >> group.rank() & 1) != 0;
        at::Tensor x = value({numel}, group.rank(), at::kFloat);
        if (is_in_heap) x = group.empty({numel}, at::kFloat).copy_(x);
        group.all_reduce_(x);
        EXPECT_TRUE(equals(x, expected)) << numel << " " << mask;
      }
    }
  });
}

// The calls that the backends of Group's asynchronous collectives start; a synchronous one runs them in the
// wait.
TEST_P(Collectives, StartedCallsCompleteInTheWait) {
  on_ranks(ranks(), [&](Group group) {
    if (ranks() == 1) return;
    CollectiveBackend& backend = *group.backend();
    const int root = ranks() - 1;
    const at::Tensor x = value({5, 3}, group.rank(), at::kFloat), sum = x.clone(), copy = x.clone();
    std::vector<at::Tensor> pieces;
    for (int peer = 0; group.rank() == root && peer < ranks(); ++peer) pieces.push_back(at::zeros({5, 3}));
    const std::unique_ptr<Work> works[] = {backend.start_all_reduce_(sum),
                                           backend.start_broadcast_(copy, root),
                                           backend.start_gather(pieces, x, root)};
    for (const std::unique_ptr<Work>& work : works) work->wait();
    EXPECT_TRUE(equals(sum, reduced({5, 3}, ranks(), Reduce::sum)));
    EXPECT_TRUE(equals(copy, value({5, 3}, root, at::kFloat)));
    for (size_t peer = 0; peer < pieces.size(); ++peer)
      EXPECT_TRUE(equals(pieces[peer], value({5, 3}, int(peer), at::kFloat))) << peer;
  });
}

TEST_P(Collectives, SharedShardsAreReadInPlace) {
  on_ranks(ranks(), [&](Group group) {
    ASSERT_EQ(group.has_symmetric_heap(), ranks() > 1);
    for (const InputLayout layout : kInputLayouts) {
      for (const auto [rows, granule] : kRowSplits) {
        const Split split = Split::even("rows", rows, ranks(), granule);
        const auto part = [&](int rank) {
          return value({rows, 5}, 0, at::kFloat).slice(0, split.range(rank).begin, split.range(rank).end);
        };
        const auto shards = group.share_shard(with_layout(group, part(group.rank()), layout), split);
        for (int peer = ranks() - 1; peer >= 0; --peer) EXPECT_TRUE(equals(shards->get(peer), part(peer)));
        group.barrier();  // shards can be read after other collectives as long as the PeerShards live
        for (int peer = 0; peer < ranks(); ++peer) EXPECT_TRUE(equals(shards->get(peer), part(peer)));
      }
    }
  });
}

TEST_P(Collectives, AcceptScalarsAndManyDims) {
  on_ranks(ranks(), [&](Group group) {
    at::Tensor scalar = at::full({}, group.rank() + 1.0);
    group.all_reduce_(scalar);
    EXPECT_EQ(scalar.item<float>(), ranks() * (ranks() + 1) / 2);
    const Split split = Split::even("middle", 5, ranks());
    const at::Tensor full = value({2, 5, 3, 2}, 0, at::kFloat);
    const base::Range range = split.range(group.rank());
    EXPECT_TRUE(equals(group.all_gather(full.slice(1, range.begin, range.end), split, 1), full));
    EXPECT_TRUE(
        equals(group.reduce_scatter(full, split, 1), full.slice(1, range.begin, range.end) * ranks()));
  });
}

TEST_P(Collectives, RecordNoGradient) {
  on_ranks(ranks(), [&](Group group) {
    if (ranks() == 1) return;
    const at::Tensor x = value({8}, group.rank(), at::kFloat).requires_grad_();
    const Split split = Split::even("x", 8 * ranks(), ranks());
    EXPECT_FALSE(group.all_reduce(x).requires_grad());
    EXPECT_FALSE(group.all_gather(x, split).requires_grad());
    EXPECT_FALSE(group.share_shard(x, split)->get(group.rank()).requires_grad());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4));

TEST(CollectivesArguments, AreCheckedBeforeAnyRankWaits) {
  on_ranks(2, [](Group group) {
    at::Tensor x = at::full({4, 3}, 1.0);
    const Split split = Split::even("rows", 8, 2);
    EXPECT_THROW(group.broadcast_(x, 2), c10::ValueError);
    EXPECT_THROW(group.all_gather(x, Split::even("rows", 9, 3)), c10::ValueError);
    EXPECT_THROW(group.all_gather(x, Split::even("rows", 12, 2)), c10::ValueError);
    EXPECT_THROW(group.all_gather(x, split, /*dim=*/2), c10::ValueError);
    EXPECT_THROW(group.reduce_scatter(x, split), c10::ValueError);
    EXPECT_THROW(group.share_shard(x, Split::even("rows", 12, 2)), c10::ValueError);
    EXPECT_THROW(group.without_symmetric_heap().share_shard(x, split), c10::ValueError);
    at::Tensor half = at::full({2, 3}, 1.0, at::kHalf);
    EXPECT_THROW(group.reduce_scatter_out(half, x, Split::even("rows", 4, 2)), c10::ValueError);
    const at::Tensor odd = at::full({3, 3}, 1.0);
    EXPECT_THROW(group.scatter(odd, 0), c10::ValueError);
    EXPECT_THROW(group.all_to_all(odd), c10::ValueError);
    at::Tensor flags = at::full({3}, true), complex = at::zeros({3}, at::kComplexFloat);
    EXPECT_THROW(group.all_reduce_(flags, Reduce::average), c10::ValueError);
    EXPECT_THROW(group.all_reduce_(x, Reduce::bit_or), c10::ValueError);
    EXPECT_THROW(group.all_reduce_(complex), c10::ValueError);
    group.barrier();  // the group still works
  });
}

// The fp32 sum of these values depends on the order: rank order is ((a + b) + c) + d, on every rank and path.
TEST(CollectivesOrder, IsRankOrderOnEveryPath) {
  on_ranks(4, [](Group group) {
    const float values[] = {1e8f, -1e8f, 1.f, 1e-3f};
    const float expected = ((values[0] + values[1]) + values[2]) + values[3];
    for (const int64_t numel : {5, 3000}) {
      for (const Group& path : {group, group.without_symmetric_heap()}) {
        at::Tensor x = path.empty({numel}, at::kFloat).fill_(values[group.rank()]);
        const Split split = Split::even("x", numel, 4);
        EXPECT_TRUE(
            equals(path.reduce_scatter(x, split), at::full({split.range(group.rank()).size()}, expected)));
        path.all_reduce_(x);
        EXPECT_TRUE(equals(x, at::full({numel}, expected)));
      }
    }
  });
}

// 1 + 2^-8 + 2^-8 in bf16: adding in bf16 would lose both small values, rounding once at the end keeps them.
TEST(CollectivesRounding, HappensOnceAtTheEnd) {
  on_ranks(3, [](Group group) {
    for (const int64_t numel : {5, 5000}) {
      at::Tensor x = group.empty({numel}, at::kBFloat16).fill_(group.rank() == 0 ? 1.0 : 0x1p-8);
      group.all_reduce_(x);
      EXPECT_TRUE(equals(x, at::full({numel}, 1.0 + 0x1p-7)));
    }
  });
}

}  // namespace
}  // namespace shardwise::comm::collectives_test

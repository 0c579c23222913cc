// Every collective × dtype × size × layout of memory against closed forms, flat and by host.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mpi/hierarchical.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::testing;
using base::Split;
using mpi::Layout;
using Memory = shardwise::testing::Layout;

// Around what an announcement carries (3968 bytes), and large enough for several messages under the lowered
// limits.
constexpr int64_t kNumels[] = {0, 1, 7, 495, 496, 497, 992, 993, 3968, 3969, 20011};

struct Cut {
  int64_t rows;
  int64_t granule;
};
// Even, uneven, and with empty shards at the end.
constexpr Cut kCuts[] = {{0, 1}, {1, 1}, {12, 1}, {13, 1}, {10, 4}, {3, 1}, {1200, 1}, {1201, 400}};

using Dtypes = std::vector<at::ScalarType>;

void for_all(const Dtypes& dtypes, const std::function<void(at::ScalarType, Memory)>& check) {
  for (const at::ScalarType dtype : dtypes) {
    for (const Memory memory : {Memory::foreign, Memory::strided}) check(dtype, memory);
  }
}

void check_all_reduce(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t numel : kNumels) {
      for (const Reduce reduce : {Reduce::sum, Reduce::max}) {
        const at::Tensor expected = reduced({numel}, group.size(), reduce, dtype);
        at::Tensor x = laid_out(group, value({numel}, group.rank(), dtype), memory);
        EXPECT_TRUE(equals(group.all_reduce(x, reduce), expected)) << numel << " " << dtype;
        EXPECT_TRUE(equals(x, value({numel}, group.rank(), dtype))) << "the input was changed";
        group.all_reduce_(x, reduce);
        EXPECT_TRUE(equals(x, expected)) << numel << " " << dtype;
      }
    }
  });
}

// By one_shot and two_shot.
void check_operations(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const Reduce reduce : kReduces) {
      for (const int64_t numel : {7, 5003}) {
        at::Tensor x = laid_out(group, value({numel}, group.rank(), dtype), memory);
        if (takes(reduce, dtype)) {
          group.all_reduce_(x, reduce);
          EXPECT_TRUE(equals(x, reduced({numel}, group.size(), reduce, dtype)))
              << name(reduce) << " " << dtype;
        } else {
          EXPECT_THROW(group.all_reduce_(x, reduce), c10::ValueError) << name(reduce) << " " << dtype;
        }
      }
    }
  });
}

void check_all_gather(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const auto [rows, granule] : kCuts) {
      const Split split = Split::even("rows", rows, group.size(), granule);
      const base::Range range = split.range(group.rank());
      const at::Tensor whole = value({rows, 5}, /*rank=*/0, dtype);
      const at::Tensor shard = laid_out(group, whole.slice(0, range.begin, range.end), memory);
      EXPECT_TRUE(equals(group.all_gather(shard, split), whole)) << rows << " " << dtype;
      const at::Tensor turned = laid_out(group, whole.t().slice(1, range.begin, range.end), memory);
      EXPECT_TRUE(equals(group.all_gather(turned, split, /*dim=*/-1), whole.t())) << rows << " " << dtype;
    }
  });
}

void check_reduce_scatter(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const auto [rows, granule] : kCuts) {
      const Split split = Split::even("rows", rows, group.size(), granule);
      const base::Range range = split.range(group.rank());
      const at::Tensor expected =
          reduced({rows, 5}, group.size(), Reduce::sum, dtype).slice(0, range.begin, range.end);
      const at::Tensor x = laid_out(group, value({rows, 5}, group.rank(), dtype), memory);
      EXPECT_TRUE(equals(group.reduce_scatter(x, split), expected)) << rows << " " << dtype;
      at::Tensor out = laid_out(group, at::zeros(expected.sizes(), dtype), memory);
      group.reduce_scatter_out(out, x, split);
      EXPECT_TRUE(equals(out, expected)) << rows << " " << dtype;
      const at::Tensor turned = laid_out(group, value({rows, 5}, group.rank(), dtype).t(), memory);
      EXPECT_TRUE(equals(group.reduce_scatter(turned, split, /*dim=*/1), expected.t()))
          << rows << " " << dtype;
    }
  });
}

void check_broadcast(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t numel : kNumels) {
      for (int root = 0; root < group.size(); ++root) {
        at::Tensor x = laid_out(group, value({numel}, group.rank(), dtype), memory);
        group.broadcast_(x, root);
        EXPECT_TRUE(equals(x, value({numel}, root, dtype))) << numel << " " << dtype;
      }
    }
  });
}

void check_scatter_and_gather(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t rows : {0, 1, 5, 700}) {
      const int root = static_cast<int>(rows % group.size());
      const at::Tensor whole = value({rows * group.size(), 3}, root, dtype);
      const at::Tensor own = whole.narrow(0, group.rank() * rows, rows);
      const at::Tensor x = laid_out(group, value({rows * group.size(), 3}, group.rank(), dtype), memory);
      EXPECT_TRUE(equals(group.scatter(x, root), own)) << rows << " " << dtype;
      const at::Tensor gathered = group.gather(laid_out(group, own, memory), root);
      EXPECT_EQ(gathered.defined(), group.rank() == root);
      EXPECT_TRUE(group.rank() != root || equals(gathered, whole)) << rows << " " << dtype;
    }
  });
}

void check_all_to_all(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t rows : {0, 1, 5, 700}) {
      const at::Tensor x = laid_out(group, value({rows * group.size(), 3}, group.rank(), dtype), memory);
      const at::Tensor y = group.all_to_all(x);
      for (int peer = 0; peer < group.size(); ++peer) {
        const at::Tensor theirs =
            value({rows * group.size(), 3}, peer, dtype).narrow(0, group.rank() * rows, rows);
        EXPECT_TRUE(equals(y.narrow(0, peer * rows, rows), theirs)) << rows << " " << dtype;
      }
    }
  });
}

class Collectives : public ::testing::TestWithParam<Layout> {
 protected:
  const Group& group_ = group_of(GetParam());
  const Dtypes all_{std::begin(kDtypes), std::end(kDtypes)};
  // A rank that failed on its own would leave the others behind.
  void TearDown() override { group_.barrier(); }
};

TEST_P(Collectives, AllReduceGivesTheSumOrMaximum) {
  check_all_reduce(group_, all_);
}
TEST_P(Collectives, AllReduceTakesEveryOperationThatADtypeHas) {
  check_operations(group_, all_);
}
TEST_P(Collectives, AllGatherConcatenatesAlongAnyDim) {
  check_all_gather(group_, all_);
}
TEST_P(Collectives, ReduceScatterGivesTheOwnRangeOfTheSum) {
  check_reduce_scatter(group_, all_);
}
TEST_P(Collectives, BroadcastGivesTheRootsValues) {
  check_broadcast(group_, all_);
}
TEST_P(Collectives, ScatterAndGatherMoveEvenRows) {
  check_scatter_and_gather(group_, all_);
}
TEST_P(Collectives, AllToAllTransposesRowBlocks) {
  check_all_to_all(group_, all_);
}

// As if a message could hold 10,001 bytes, which is within an element, and a round of a sum 30,000.
TEST_P(Collectives, LongMessagesAreCut) {
  mpi::Options options = new_options(GetParam());
  options.message_bytes = 10'001;
  options.round_bytes = 30'000;
  const Group group = mpi::connect(options);
  const Dtypes some = {at::kDouble, at::kBFloat16, at::kByte};
  check_all_reduce(group, some);
  check_all_gather(group, some);
  check_reduce_scatter(group, some);
  check_broadcast(group, some);
  check_scatter_and_gather(group, some);
  check_all_to_all(group, some);
}

/// Groups of some of the job's ranks, all of them made and used at the same time.
class SubGroups : public ::testing::TestWithParam<Layout> {
 protected:
  /// Ranks of which `part` gives the same make a group, by one name as a mesh's do; who is alone goes on.
  void check(const std::function<int(int)>& part) {
    mpi::Options options = new_options(GetParam());
    std::erase_if(options.ranks, [&](int rank) { return part(rank) != part(options.rank); });
    if (options.ranks.size() == 1) return;
    const Group group = mpi::connect(options);
    ASSERT_EQ(group.size(), int(options.ranks.size()));
    EXPECT_EQ(options.ranks[size_t(group.rank())], options.rank);
    const Dtypes some = {at::kFloat};
    check_all_reduce(group, some);
    check_all_gather(group, some);
    check_reduce_scatter(group, some);
    check_broadcast(group, some);
    check_all_to_all(group, some);
  }
  void TearDown() override { all_.barrier(); }  // for which who is alone waits meanwhile
  const Group& all_ = group_of(Layout::flat);
};

TEST_P(SubGroups, EveryOtherRank) {
  check([](int rank) { return rank % 2; });
}
TEST_P(SubGroups, AllButTheFirst) {
  check([](int rank) { return rank > 0; });
}
TEST_P(SubGroups, TheSecondPairAndTheOthers) {
  check([](int rank) { return rank / 2 == 1; });
}

INSTANTIATE_TEST_SUITE_P(Layouts, SubGroups, ::testing::Values(Layout::flat, Layout::by_host),
                         [](const auto& layout) {
                           return layout.param == Layout::flat ? "flat" : "by_host";
                         });

/// Random terms of very different sizes, so that another order gives other bits.
at::Tensor rough(int64_t numel, int rank, at::ScalarType dtype) {
  const at::Tensor phase = at::arange(numel, at::kDouble).mul(0.7).add(1.3 * rank);
  return phase.sin().mul(phase.mul(3.1).cos().mul(8).exp()).to(dtype);
}

constexpr at::ScalarType kFloats[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

TEST_P(Collectives, EveryRankHasTheSameBits) {
  for (const at::ScalarType dtype : kFloats) {
    for (const int64_t numel : {3, 1113, 5000, 20011}) {
      const at::Tensor sum = group_.all_reduce(rough(numel, group_.rank(), dtype)).view({1, numel});
      const at::Tensor all = group_.all_gather(sum, Split::even("ranks", group_.size(), group_.size()));
      for (int peer = 0; peer < group_.size(); ++peer) EXPECT_TRUE(at::equal(all[peer], sum[0])) << dtype;
    }
  }
}

// Two roundings in fp16 or bf16 would be off by a whole unit in the last place.
TEST_P(Collectives, SumsAreRoundedOnce) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor exact = at::zeros({5000}, at::kDouble);
    for (int rank = 0; rank < group_.size(); ++rank) exact += rough(5000, rank, dtype).to(at::kDouble);
    const at::Tensor sum = group_.all_reduce(rough(5000, group_.rank(), dtype));
    const at::Tensor half_unit = exact.abs() * (dtype == at::kHalf ? 0x1p-11 : 0x1p-8);
    // and what the additions in fp32 may lose, of terms up to e^8
    EXPECT_TRUE(
        ((sum.to(at::kDouble) - exact).abs() <= half_unit * 1.001 + 4 * 3000 * 0x1p-24).all().item<bool>())
        << dtype;
  }
}

TEST_P(Collectives, AnAverageIsTheSumDivided) {
  const at::Tensor expected = reduced({5000}, group_.size(), Reduce::average);
  const at::Tensor average = group_.all_reduce(value({5000}, group_.rank(), at::kDouble), Reduce::average);
  EXPECT_TRUE((average - expected).abs().max().item<double>() < 1e-14);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Collectives, ::testing::Values(Layout::flat, Layout::by_host),
                         [](const auto& layout) {
                           return layout.param == Layout::flat ? "flat" : "by_host";
                         });

TEST(FlatBits, AreThoseOfSharedMemory) {
  const Group shared = shared_group(), &flat = group_of(Layout::flat);
  for (const at::ScalarType dtype : kFloats) {
    for (const int64_t numel : {3, 1113, 5000, 20011}) {
      const at::Tensor x = rough(numel, flat.rank(), dtype);
      EXPECT_TRUE(at::equal(flat.all_reduce(x), shared.all_reduce(x))) << numel << " " << dtype;
      const Split split = Split::even("x", numel, flat.size());
      EXPECT_TRUE(at::equal(flat.reduce_scatter(x, split), shared.reduce_scatter(x, split)))
          << numel << " " << dtype;
    }
  }
}

TEST(FlatAndByHost, AreCloseAndCountTheSameBytes) {
  const Group flat = group_of(Layout::flat).with_new_counters();
  const Group by_host = group_of(Layout::by_host).with_new_counters();
  for (const Group& group : {flat, by_host}) {
    group.all_reduce(rough(5000, group.rank(), at::kFloat));
    group.all_gather(rough(50, group.rank(), at::kFloat), Split::even("x", 50 * group.size(), group.size()));
  }
  for (const Op op : {Op::all_reduce, Op::all_gather}) {
    EXPECT_EQ(flat.counters()[op].calls, by_host.counters()[op].calls);
    EXPECT_EQ(flat.counters()[op].bytes, by_host.counters()[op].bytes);
  }
  const at::Tensor x = rough(20011, flat.rank(), at::kFloat);
  const at::Tensor difference = (flat.all_reduce(x) - by_host.all_reduce(x)).abs();
  EXPECT_LE(difference.max().item<float>(), 8 * 3000 * 0x1p-24);
}

/// A group, and what counts its bytes.
struct Counted {
  std::shared_ptr<mpi::Transport> transport;
  Group group;
  mpi::Hosts hosts;
  explicit Counted(Layout layout) : Counted(layout, new_options(layout)) {}
  Counted(Layout layout, const mpi::Options& options) {
    const mpi::Meeting meeting = meet(options);
    hosts = mpi::Hosts::of(meeting);
    if (layout == Layout::flat) {
      transport = std::make_shared<mpi::Transport>(options, meeting);
    } else {
      transport = std::make_shared<mpi::Hierarchical>(options, meeting, hosts);
    }
    group = Group(c10::make_intrusive<Backend>(transport));
  }
};

class BytesBetweenHosts : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { ASSERT_TRUE(counted_.hosts.count() > 1 && counted_.hosts.is_even()); }
  void TearDown() override { counted_.group.barrier(); }
  int64_t crossed_by(const std::function<void(const Group&)>& call) {
    const int64_t before = counted_.transport->crossed_bytes();
    call(counted_.group);
    return counted_.transport->crossed_bytes() - before;
  }
  Counted counted_{GetParam()};
};

// The table of docs/algorithms.md; a sum's terms cross in fp32 by host.
TEST_P(BytesBetweenHosts, AreThoseOfTheFormulas) {
  const bool by_host = GetParam() == Layout::by_host;
  const int64_t hosts = counted_.hosts.count(), ranks = counted_.group.size();
  const Split rows = Split::even("rows", 3600, int(ranks));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::zeros({3600, 5}, dtype);
    const auto bytes = int64_t(x.nbytes());
    const int64_t once = bytes * (hosts - 1) / hosts / (by_host ? ranks / hosts : 1);
    const int64_t terms = by_host && dtype == at::kBFloat16 ? 2 * once : once;
    const base::Range own = rows.range(counted_.group.rank());
    const at::Tensor shard = x.slice(0, own.begin, own.end);
    const int64_t to_others = by_host ? hosts - 1 : ranks - ranks / hosts;
    EXPECT_EQ(crossed_by([&](const Group& group) { group.all_reduce(x); }), terms + once) << dtype;
    EXPECT_EQ(crossed_by([&](const Group& group) { group.reduce_scatter(x, rows); }), terms) << dtype;
    EXPECT_EQ(crossed_by([&](const Group& group) { group.all_gather(shard, rows); }), once) << dtype;
    at::Tensor copy = x.clone();
    EXPECT_EQ(crossed_by([&](const Group& group) { group.broadcast_(copy, 0); }),
              counted_.group.rank() == 0 ? to_others * bytes : 0)
        << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, BytesBetweenHosts, ::testing::Values(Layout::flat, Layout::by_host),
                         [](const auto& layout) {
                           return layout.param == Layout::flat ? "flat" : "by_host";
                         });

}  // namespace
}  // namespace shardwise::comm

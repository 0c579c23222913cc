// Every collective × dtype × size × memory layout against closed forms, flat and hierarchical.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mpi/hierarchical.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::testing;
using base::Split;
using mpi::Topology;
using Memory = shardwise::testing::InputLayout;

// Sizes around the payload of an announcement (3968 bytes), and one large enough for several messages under
// the lowered limits.
constexpr int64_t kNumels[] = {0, 1, 7, 495, 496, 497, 992, 993, 3968, 3969, 20011};

struct SplitCase {
  int64_t rows;
  int64_t granule;
};
// Even, uneven, and with empty shards at the end.
constexpr SplitCase kSplits[] = {{0, 1}, {1, 1}, {12, 1}, {13, 1}, {10, 4}, {3, 1}, {1200, 1}, {1201, 400}};

using Dtypes = std::vector<at::ScalarType>;

void for_all(const Dtypes& dtypes, const std::function<void(at::ScalarType, Memory)>& check) {
  for (const at::ScalarType dtype : dtypes) {
    for (const Memory memory : {Memory::unregistered, Memory::strided}) check(dtype, memory);
  }
}

void check_all_reduce(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t numel : kNumels) {
      for (const Reduce reduce : {Reduce::sum, Reduce::max}) {
        const at::Tensor expected = reduced({numel}, group.size(), reduce, dtype);
        at::Tensor x = with_layout(group, value({numel}, group.rank(), dtype), memory);
        EXPECT_TRUE(equals(group.all_reduce(x, reduce), expected)) << numel << " " << dtype;
        EXPECT_TRUE(equals(x, value({numel}, group.rank(), dtype))) << "the input was modified";
        group.all_reduce_(x, reduce);
        EXPECT_TRUE(equals(x, expected)) << numel << " " << dtype;
      }
    }
  });
}

// Sizes for one_shot and for two_shot.
void check_reductions(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const Reduce reduce : kReduces) {
      for (const int64_t numel : {7, 5003}) {
        at::Tensor x = with_layout(group, value({numel}, group.rank(), dtype), memory);
        if (supports(reduce, dtype)) {
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
    for (const auto [rows, granule] : kSplits) {
      const Split split = Split::even("rows", rows, group.size(), granule);
      const base::Range range = split.range(group.rank());
      const at::Tensor full = value({rows, 5}, /*rank=*/0, dtype);
      const at::Tensor shard = with_layout(group, full.slice(0, range.begin, range.end), memory);
      EXPECT_TRUE(equals(group.all_gather(shard, split), full)) << rows << " " << dtype;
      at::Tensor all = at::full({rows, 5}, 77, dtype);
      all.slice(0, range.begin, range.end).copy_(shard);
      group.all_gather_out(all, all.slice(0, range.begin, range.end), split);
      EXPECT_TRUE(equals(all, full)) << "in place " << rows << " " << dtype;
      const at::Tensor transposed = with_layout(group, full.t().slice(1, range.begin, range.end), memory);
      EXPECT_TRUE(equals(group.all_gather(transposed, split, /*dim=*/-1), full.t())) << rows << " " << dtype;
    }
  });
}

void check_reduce_scatter(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const auto [rows, granule] : kSplits) {
      const Split split = Split::even("rows", rows, group.size(), granule);
      const base::Range range = split.range(group.rank());
      const at::Tensor expected =
          reduced({rows, 5}, group.size(), Reduce::sum, dtype).slice(0, range.begin, range.end);
      const at::Tensor x = with_layout(group, value({rows, 5}, group.rank(), dtype), memory);
      EXPECT_TRUE(equals(group.reduce_scatter(x, split), expected)) << rows << " " << dtype;
      at::Tensor out = with_layout(group, at::zeros(expected.sizes(), dtype), memory);
      group.reduce_scatter_out(out, x, split);
      EXPECT_TRUE(equals(out, expected)) << rows << " " << dtype;
      at::Tensor all = x.clone(), part = all.narrow(0, range.begin, range.size());
      group.reduce_scatter_out(part, all, split);
      EXPECT_TRUE(equals(part, expected)) << "in place " << rows << " " << dtype;
      const at::Tensor transposed = with_layout(group, value({rows, 5}, group.rank(), dtype).t(), memory);
      EXPECT_TRUE(equals(group.reduce_scatter(transposed, split, /*dim=*/1), expected.t()))
          << rows << " " << dtype;
    }
  });
}

void check_broadcast(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t numel : kNumels) {
      for (int root = 0; root < group.size(); ++root) {
        at::Tensor x = with_layout(group, value({numel}, group.rank(), dtype), memory);
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
      const at::Tensor full = value({rows * group.size(), 3}, root, dtype);
      const at::Tensor shard = full.narrow(0, group.rank() * rows, rows);
      const at::Tensor x = with_layout(group, value({rows * group.size(), 3}, group.rank(), dtype), memory);
      EXPECT_TRUE(equals(group.scatter(x, root), shard)) << rows << " " << dtype;
      const at::Tensor gathered = group.gather(with_layout(group, shard, memory), root);
      EXPECT_EQ(gathered.defined(), group.rank() == root);
      EXPECT_TRUE(group.rank() != root || equals(gathered, full)) << rows << " " << dtype;
    }
  });
}

void check_all_to_all(const Group& group, const Dtypes& dtypes) {
  for_all(dtypes, [&](at::ScalarType dtype, Memory memory) {
    for (const int64_t rows : {0, 1, 5, 700}) {
      const at::Tensor x = with_layout(group, value({rows * group.size(), 3}, group.rank(), dtype), memory);
      const at::Tensor y = group.all_to_all(x);
      for (int peer = 0; peer < group.size(); ++peer) {
        const at::Tensor theirs =
            value({rows * group.size(), 3}, peer, dtype).narrow(0, group.rank() * rows, rows);
        EXPECT_TRUE(equals(y.narrow(0, peer * rows, rows), theirs)) << rows << " " << dtype;
      }
    }
  });
}

class Collectives : public ::testing::TestWithParam<Topology> {
 protected:
  const Group& group_ = group_of(GetParam());
  const Dtypes all_{std::begin(kDtypes), std::end(kDtypes)};
  // Waits for the other ranks, so that a failure on one rank does not break a later test.
  void TearDown() override { group_.barrier(); }
};

TEST_P(Collectives, AllReduceReturnsTheSumOrMaximum) {
  check_all_reduce(group_, all_);
}
TEST_P(Collectives, AllReduceSupportsEveryReductionOfADtype) {
  check_reductions(group_, all_);
}
TEST_P(Collectives, AllGatherConcatenatesAlongAnyDim) {
  check_all_gather(group_, all_);
}
TEST_P(Collectives, ReduceScatterReturnsTheLocalRowsOfTheSum) {
  check_reduce_scatter(group_, all_);
}
TEST_P(Collectives, BroadcastCopiesTheRootsValues) {
  check_broadcast(group_, all_);
}
TEST_P(Collectives, ScatterAndGatherMoveEvenRows) {
  check_scatter_and_gather(group_, all_);
}
TEST_P(Collectives, AllToAllTransposesRowBlocks) {
  check_all_to_all(group_, all_);
}

// Messages of at most 10,001 bytes, which ends within an element, and reduction rounds of 30,000 bytes.
TEST_P(Collectives, LongMessagesAreSentInChunks) {
  mpi::ConnectOptions options = new_options(GetParam());
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

/// Groups of some of the job's ranks, created and used at the same time.
class Subgroups : public ::testing::TestWithParam<Topology> {
 protected:
  /// Ranks with the same `part(rank)` create a group. All groups have one name, as those of a mesh axis do. A
  /// rank that is alone returns at once.
  void check(const std::function<int(int)>& part) {
    mpi::ConnectOptions options = new_options(GetParam());
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
  void TearDown() override { all_.barrier(); }  // where a rank that is alone waits
  const Group& all_ = group_of(Topology::flat);
};

TEST_P(Subgroups, EveryOtherRank) {
  check([](int rank) { return rank % 2; });
}
TEST_P(Subgroups, AllButTheFirst) {
  check([](int rank) { return rank > 0; });
}
TEST_P(Subgroups, TheSecondPairAndTheOthers) {
  check([](int rank) { return rank / 2 == 1; });
}

INSTANTIATE_TEST_SUITE_P(Topologies, Subgroups, ::testing::Values(Topology::flat, Topology::hierarchical),
                         [](const auto& topology) {
                           return topology.param == Topology::flat ? "flat" : "hierarchical";
                         });

/// Returns values of very different magnitudes, so that another summation order gives other bits.
at::Tensor rough(int64_t numel, int rank, at::ScalarType dtype) {
  const at::Tensor phase = at::arange(numel, at::kDouble).mul(0.7).add(1.3 * rank);
  return phase.sin().mul(phase.mul(3.1).cos().mul(8).exp()).to(dtype);
}

constexpr at::ScalarType kFloats[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

TEST_P(Collectives, EveryRankGetsTheSameBits) {
  for (const at::ScalarType dtype : kFloats) {
    for (const int64_t numel : {3, 1113, 5000, 20011}) {
      const at::Tensor sum = group_.all_reduce(rough(numel, group_.rank(), dtype)).view({1, numel});
      const at::Tensor all = group_.all_gather(sum, Split::even("ranks", group_.size(), group_.size()));
      for (int peer = 0; peer < group_.size(); ++peer) EXPECT_TRUE(at::equal(all[peer], sum[0])) << dtype;
    }
  }
}

// Two roundings in fp16 or bf16 would be off by a full unit in the last place.
TEST_P(Collectives, SumsAreRoundedOnce) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor exact = at::zeros({5000}, at::kDouble);
    for (int rank = 0; rank < group_.size(); ++rank) exact += rough(5000, rank, dtype).to(at::kDouble);
    const at::Tensor sum = group_.all_reduce(rough(5000, group_.rank(), dtype));
    const at::Tensor half_unit = exact.abs() * (dtype == at::kHalf ? 0x1p-11 : 0x1p-8);
    // plus the rounding of fp32 additions of values up to e^8
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

INSTANTIATE_TEST_SUITE_P(Topologies, Collectives, ::testing::Values(Topology::flat, Topology::hierarchical),
                         [](const auto& topology) {
                           return topology.param == Topology::flat ? "flat" : "hierarchical";
                         });

TEST(FlatBits, EqualThoseOfSharedMemory) {
  const Group shared = shared_group(), &flat = group_of(Topology::flat);
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

TEST(FlatAndHierarchical, AgreeWithinRoundingAndCountTheSameBytes) {
  const Group flat = group_of(Topology::flat).with_new_counters();
  const Group hierarchical = group_of(Topology::hierarchical).with_new_counters();
  for (const Group& group : {flat, hierarchical}) {
    group.all_reduce(rough(5000, group.rank(), at::kFloat));
    group.all_gather(rough(50, group.rank(), at::kFloat), Split::even("x", 50 * group.size(), group.size()));
  }
  for (const Op op : {Op::all_reduce, Op::all_gather}) {
    EXPECT_EQ(flat.counters()[op].calls, hierarchical.counters()[op].calls);
    EXPECT_EQ(flat.counters()[op].bytes, hierarchical.counters()[op].bytes);
  }
  const at::Tensor x = rough(20011, flat.rank(), at::kFloat);
  const at::Tensor difference = (flat.all_reduce(x) - hierarchical.all_reduce(x)).abs();
  EXPECT_LE(difference.max().item<float>(), 8 * 3000 * 0x1p-24);
}

/// A group and its transport, which counts its bytes.
struct CountedGroup {
  std::shared_ptr<mpi::Transport> transport;
  Group group;
  mpi::Nodes nodes;
  explicit CountedGroup(Topology topology) : CountedGroup(topology, new_options(topology)) {}
  CountedGroup(Topology topology, const mpi::ConnectOptions& options) {
    const mpi::Membership membership = rendezvous(options);
    nodes = mpi::Nodes::of(membership);
    if (topology == Topology::flat) {
      transport = std::make_shared<mpi::Transport>(options, membership);
    } else {
      transport = std::make_shared<mpi::Hierarchical>(options, membership, nodes);
    }
    group = Group(transport);
  }
};

class BytesBetweenNodes : public ::testing::TestWithParam<Topology> {
 protected:
  void SetUp() override { ASSERT_TRUE(counted_.nodes.count() > 1 && counted_.nodes.is_even()); }
  void TearDown() override { counted_.group.barrier(); }
  int64_t inter_node_bytes_of(const std::function<void(const Group&)>& call) {
    const int64_t before = counted_.transport->inter_node_bytes();
    call(counted_.group);
    return counted_.transport->inter_node_bytes() - before;
  }
  CountedGroup counted_{GetParam()};
};

// The table of docs/algorithms.md; hierarchical reductions send partial sums between nodes in fp32.
TEST_P(BytesBetweenNodes, MatchTheFormulas) {
  const bool hierarchical = GetParam() == Topology::hierarchical;
  const int64_t nodes = counted_.nodes.count(), ranks = counted_.group.size();
  const Split rows = Split::even("rows", 3600, int(ranks));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::zeros({3600, 5}, dtype);
    const auto bytes = int64_t(x.nbytes());
    const int64_t once = bytes * (nodes - 1) / nodes / (hierarchical ? ranks / nodes : 1);
    const int64_t partials = hierarchical && dtype == at::kBFloat16 ? 2 * once : once;
    const base::Range local = rows.range(counted_.group.rank());
    const at::Tensor shard = x.slice(0, local.begin, local.end);
    const int64_t to_others = hierarchical ? nodes - 1 : ranks - ranks / nodes;
    EXPECT_EQ(inter_node_bytes_of([&](const Group& group) { group.all_reduce(x); }), partials + once)
        << dtype;
    EXPECT_EQ(inter_node_bytes_of([&](const Group& group) { group.reduce_scatter(x, rows); }), partials)
        << dtype;
    EXPECT_EQ(inter_node_bytes_of([&](const Group& group) { group.all_gather(shard, rows); }), once) << dtype;
    at::Tensor copy = x.clone();
    EXPECT_EQ(inter_node_bytes_of([&](const Group& group) { group.broadcast_(copy, 0); }),
              counted_.group.rank() == 0 ? to_others * bytes : 0)
        << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, BytesBetweenNodes,
                         ::testing::Values(Topology::flat, Topology::hierarchical), [](const auto& topology) {
                           return topology.param == Topology::flat ? "flat" : "hierarchical";
                         });

}  // namespace
}  // namespace shardwise::comm

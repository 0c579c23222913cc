// Each conjugate collective: its forward against the unsharded tensor, its backward as the forward's adjoint
// (⟨Ax, y⟩ = ⟨x, Aᵀy⟩), for even, uneven and empty shards, with and without the symmetric heap.
#include "shardwise/parallel/collectives.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/placed.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::collectives_test {
namespace {

using at::Tensor;
using base::Split;
using comm::Group;
using testing::GlobalSpec;
using testing::LocalValue;
using testing::random_tensor;
using testing::same_bits;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;
using FeatureShard = Sharded<kFeature>;

constexpr uint64_t kInput = 1, kGradient = 2;

// One length over the ranks, in both kinds of group.
struct Given {
  Group group;
  int64_t length;  // of the sharded dim

  Split split() const { return Split::even("length", length, group.size()); }
  Step step() const { return Step(group, length); }
  GlobalSpec first(uint64_t seed) const { return {{length, 2, 3}, split(), seed}; }  // sharded along dim 0
  GlobalSpec last(uint64_t seed) const { return {{3, 2, length}, split(), seed}; }   // sharded along dim −1
};

void for_each_group(const std::function<void(const Given&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      for (const int64_t length : {12, 7, 2, 0}) {  // divisible by each t, by none, fewer than t, empty
        check({group, length});
        check({group.without_symmetric_heap(), length});
      }
    });
  }
}

// Runs forward and backward and checks what is true for every linear map between placements. Returns y.
template <class From, class To>
Tensor check_map(const std::function<Placed<To>(const Placed<From>&)>& forward, const GlobalSpec& from,
                 const GlobalSpec& to, const Group& group) {
  const Tensor x = LocalValue<From>::local(from, group), x_before = x.clone();
  const Tensor dy = LocalValue<typename GradientOf<To>::type>::local(to, group), dy_before = dy.clone();
  const Tensor leaf = x.detach().requires_grad_();
  const Tensor y = forward(Placed<From>(leaf)).local();
  EXPECT_EQ(y.sizes(), (LocalValue<To>::local(to, group).sizes()));
  y.backward(dy);
  const Tensor dx = leaf.grad();

  const double forward_dot = testing::pairing<To>(y, dy, group),
               backward_dot = testing::pairing<From>(x, dx, group);
  EXPECT_NEAR(forward_dot, backward_dot, 1e-12 * (1 + std::abs(forward_dot)))
      << "the backward is not the adjoint";
  EXPECT_TRUE(same_bits(x, x_before)) << "the input was changed";
  EXPECT_TRUE(same_bits(dy, dy_before)) << "the output's gradient was changed";
  const at::NoGradGuard no_grad;
  const Tensor without = forward(Placed<From>(leaf)).local();
  EXPECT_FALSE(without.grad_fn()) << "a node was recorded without gradients";
  EXPECT_TRUE(same_bits(without, y.detach()));
  return y.detach();
}

TEST(Collectives, EnterFromInvariantIsTheIdentity) {
  for_each_group([](const Given& g) {
    const Tensor y = check_map<Invariant, Replicated>([&](const auto& x) { return enter(x, g.step()); },
                                                      g.first(kInput), g.first(kGradient), g.group);
    EXPECT_TRUE(same_bits(y, random_tensor(g.first(kInput).shape, kInput)));
  });
}

TEST(Collectives, EnterFromSequenceShardsGathers) {
  for_each_group([](const Given& g) {
    const Tensor y = check_map<SequenceShard, Replicated>([&](const auto& x) { return enter(x, g.step()); },
                                                          g.first(kInput), g.first(kGradient), g.group);
    EXPECT_TRUE(same_bits(y, random_tensor(g.first(kInput).shape, kInput)));
  });
}

TEST(Collectives, LeaveToInvariantAllReduces) {
  for_each_group([](const Given& g) {
    const Tensor y =
        check_map<Partial, Invariant>([&](const auto& x) { return leave<Invariant>(x, g.step()); },
                                      g.first(kInput), g.first(kGradient), g.group);
    EXPECT_TRUE(same_bits(y, LocalValue<Partial>::sum(g.first(kInput), g.group.size())))
        << "not the sum in rank order";
  });
}

TEST(Collectives, LeaveToSequenceShardsReduceScatters) {
  for_each_group([](const Given& g) {
    const Tensor y =
        check_map<Partial, SequenceShard>([&](const auto& x) { return leave<SequenceShard>(x, g.step()); },
                                          g.first(kInput), g.first(kGradient), g.group);
    const Tensor sum = LocalValue<Partial>::sum(g.first(kInput), g.group.size());
    EXPECT_TRUE(same_bits(y, slice_of(sum, g.split(), 0, g.group.rank())));
  });
}

TEST(Collectives, GatherToInvariant) {
  for_each_group([](const Given& g) {
    const Tensor y = check_map<FeatureShard, Invariant>(
        [&](const auto& x) { return gather_to_invariant(x, g.split(), g.group); }, g.last(kInput),
        g.last(kGradient), g.group);
    EXPECT_TRUE(same_bits(y, random_tensor(g.last(kInput).shape, kInput)));
  });
}

TEST(Collectives, GatherToReplicated) {
  for_each_group([](const Given& g) {
    const Tensor y = check_map<FeatureShard, Replicated>(
        [&](const auto& x) { return gather_to_replicated(x, g.split(), g.group); }, g.last(kInput),
        g.last(kGradient), g.group);
    EXPECT_TRUE(same_bits(y, random_tensor(g.last(kInput).shape, kInput)));
  });
}

TEST(Collectives, SliceOfInvariant) {
  for_each_group([](const Given& g) {
    const Tensor y = check_map<Invariant, FeatureShard>(
        [&](const auto& x) { return slice<kFeature>(x, g.split(), g.group); }, g.last(kInput),
        g.last(kGradient), g.group);
    EXPECT_TRUE(
        same_bits(y, slice_of(random_tensor(g.last(kInput).shape, kInput), g.split(), -1, g.group.rank())));
  });
}

TEST(Collectives, SliceOfReplicated) {
  for_each_group([](const Given& g) {
    const Tensor y = check_map<Replicated, FeatureShard>(
        [&](const auto& x) { return slice<kFeature>(x, g.split(), g.group); }, g.last(kInput),
        g.last(kGradient), g.group);
    EXPECT_TRUE(
        same_bits(y, slice_of(random_tensor(g.last(kInput).shape, kInput), g.split(), -1, g.group.rank())));
  });
}

TEST(Collectives, SumToReplicated) {
  for_each_group([](const Given& g) {
    const Tensor y =
        check_map<Partial, Replicated>([&](const auto& x) { return sum_to_replicated(x, g.group); },
                                       g.first(kInput), g.first(kGradient), g.group);
    EXPECT_TRUE(same_bits(y, LocalValue<Partial>::sum(g.first(kInput), g.group.size())));
  });
}

TEST(Collectives, ExchangeMovesTheShardingToAnotherDim) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& group) {
      const Split rows = Split::even("rows", 12, group.size()),
                  columns = Split::even("columns", 24, group.size());
      const Tensor y = check_map<SequenceShard, FeatureShard>(
          [&](const auto& x) { return exchange<kSequence, kFeature>(x, rows, columns, group); },
          {{12, 2, 24}, rows, kInput}, {{12, 2, 24}, columns, kGradient}, group);
      EXPECT_TRUE(same_bits(y, slice_of(random_tensor({12, 2, 24}, kInput), columns, -1, group.rank())));
    });
  }
}

TEST(Collectives, ExchangeRejectsUnevenSplits) {
  testing::on_ranks(2, [](const Group& group) {
    const Split odd = Split::even("rows", 3, 2), even = Split::even("columns", 4, 2);
    const Placed<SequenceShard> x(random_tensor({odd.range(group.rank()).size(), 1, 4}, kInput));
    EXPECT_THROW((exchange<kSequence, kFeature>(x, odd, even, group)), c10::ValueError);
  });
}

// The gradients differ from rank to rank, which distinguishes the two backwards of a gather and of a slice.
TEST(Collectives, GatherAndSliceHaveTwoBackwardsEach) {
  testing::on_ranks(3, [](const Group& group) {
    const Split split = Split::even("features", 7, 3);
    const GlobalSpec full{{2, 1, 7}, split, kGradient};
    const auto gradient_of = [&](const Tensor& y, const Tensor& leaf, const Tensor& dy) {
      y.backward(dy);
      return leaf.grad();
    };
    const Tensor partial = LocalValue<Partial>::local(full, group), sum = LocalValue<Partial>::sum(full, 3);
    const auto shard = [&] { return LocalValue<FeatureShard>::local(full, group).requires_grad_(); };

    const Tensor a = shard(), b = shard();
    const Tensor sliced =
        gradient_of(gather_to_invariant(Placed<FeatureShard>(a), split, group).local(), a, sum);
    const Tensor reduced =
        gradient_of(gather_to_replicated(Placed<FeatureShard>(b), split, group).local(), b, partial);
    EXPECT_TRUE(same_bits(sliced, slice_of(sum, split, -1, group.rank())));
    EXPECT_TRUE(same_bits(reduced, slice_of(sum, split, -1, group.rank())));

    const Tensor dy = slice_of(sum, split, -1, group.rank());
    const Tensor c = random_tensor({2, 1, 7}, kInput).requires_grad_(),
                 d = random_tensor({2, 1, 7}, kInput).requires_grad_();
    const Tensor gathered = gradient_of(slice<kFeature>(Placed<Invariant>(c), split, group).local(), c, dy);
    const Tensor padded = gradient_of(slice<kFeature>(Placed<Replicated>(d), split, group).local(), d, dy);
    EXPECT_TRUE(same_bits(gathered, sum));
    Tensor expected = at::zeros_like(sum);
    expected.narrow(-1, split.range(group.rank()).begin, split.range(group.rank()).size()).copy_(dy);
    EXPECT_TRUE(same_bits(padded, expected));
  });
}

TEST(Collectives, AcceptNonContiguousInputs) {
  testing::on_ranks(2, [](const Group& group) {
    const Tensor partials[] = {random_tensor({3, 2, 5}, 10), random_tensor({3, 2, 5}, 11)};
    const Tensor local = partials[group.rank()].transpose(0, 2);  // [5, 2, 3]
    const Step step(group, 5);
    const Tensor sum = (partials[0] + partials[1]).transpose(0, 2).contiguous();
    EXPECT_TRUE(same_bits(leave<Invariant>(Placed<Partial>(local), step).local(), sum));
    EXPECT_TRUE(same_bits(leave<SequenceShard>(Placed<Partial>(local), step).local(),
                          slice_of(sum, step.sequence, 0, group.rank())));
    const Tensor full = random_tensor({3, 2, 5}, 12).transpose(0, 2);
    const base::Range range = step.local_sequence();
    const Tensor shard = full.narrow(0, range.begin, range.size());
    EXPECT_TRUE(same_bits(enter(Placed<SequenceShard>(shard), step).local(), full.contiguous()));
  });
}

TEST(Collectives, CallAndSendWhatIsDocumented) {
  testing::on_ranks(3, [](const Group& group) {
    const Step step(group, 7);
    const int64_t row = 2 * 3 * 8, local = step.local_sequence().size() * row, total = 7 * row;
    const int64_t slice = Split::even("message", 7 * 2 * 3, 3).range(group.rank()).size() * 8;
    const int64_t reduce_bytes = slice * 2 + (total - slice);
    const Tensor shard = random_tensor({step.local_sequence().size(), 2, 3}, 1).requires_grad_();
    const Tensor full = random_tensor({7, 2, 3}, 1).requires_grad_();
    const auto counted = [&](comm::Op op, const std::function<Tensor()>& run) {
      const comm::Counters before = group.counters();
      const Tensor result = run();
      const comm::Counters used = group.counters() - before;
      EXPECT_EQ(used[op].calls, used.total().calls) << "another collective was called";
      EXPECT_EQ(used[op].calls, 1);
      EXPECT_EQ(used[op].bytes, used.total().bytes);
      return std::pair(used[op].bytes, result);
    };
    const auto nothing = [&](const std::function<Tensor()>& run) {
      const comm::Counters before = group.counters();
      const Tensor result = run();
      EXPECT_EQ((group.counters() - before).total().calls, 0);
      return result;
    };
    const auto backward = [](const Tensor& y) {
      return [y] { return y.backward(at::full(y.sizes(), 1.0, at::kDouble)), y; };
    };

    const Tensor f = nothing([&] { return enter(Placed<Invariant>(full), step).local(); });
    EXPECT_EQ(counted(comm::Op::all_reduce, backward(f)).first, reduce_bytes);
    const auto [f_star_bytes, f_star] =
        counted(comm::Op::all_reduce, [&] { return leave<Invariant>(Placed<Partial>(full), step).local(); });
    EXPECT_EQ(f_star_bytes, reduce_bytes);
    nothing(backward(f_star));
    const auto [g_bytes, g] =
        counted(comm::Op::all_gather, [&] { return enter(Placed<SequenceShard>(shard), step).local(); });
    EXPECT_EQ(g_bytes, local * 2);
    EXPECT_EQ(counted(comm::Op::reduce_scatter, backward(g)).first, total - local);
    const auto [g_star_bytes, g_star] = counted(
        comm::Op::reduce_scatter, [&] { return leave<SequenceShard>(Placed<Partial>(full), step).local(); });
    EXPECT_EQ(g_star_bytes, total - local);
    EXPECT_EQ(counted(comm::Op::all_gather, backward(g_star)).first, local * 2);
  });
}

TEST(Collectives, GroupOfOneDoesNotCommunicate) {
  const Group alone;
  const Step step(alone, 5);
  const Tensor x = random_tensor({5, 2, 3}, 1).requires_grad_();
  const Tensor y =
      leave<SequenceShard>(Placed<Partial>(enter(Placed<Invariant>(x), step).local()), step).local();
  y.backward(random_tensor({5, 2, 3}, 2));
  EXPECT_TRUE(same_bits(y.detach(), x.detach()));
  EXPECT_TRUE(same_bits(x.grad(), random_tensor({5, 2, 3}, 2)));
  EXPECT_EQ(alone.counters().total().calls, 0);
}

}  // namespace
}  // namespace shardwise::parallel::collectives_test

// A reduction fused with the next norm has the bits and the traffic of reduction, residual add and norm.
#include "shardwise/parallel/deferred_reduction.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/rms_norm.h"
#include "tests/parallel/linear_case.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::deferred_reduction_test {
namespace {

using at::Tensor;
using comm::Counters;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::same_bits;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;

constexpr double kEps = 1e-5;

/// A residual stream [s, 1, h] and the pending reduction that is added to it.
struct Case {
  Step step;
  int64_t h;
  bool has_bias;
  at::ScalarType dtype;

  Tensor full_x() const { return random_tensor({step.sequence.size(), 1, h}, 1, dtype); }
  template <class Stream>
  Placed<Stream> x() const {
    if constexpr (std::is_same_v<Stream, Invariant>) return Placed<Stream>(full_x());
    return Placed<Stream>(slice_of(full_x(), step.sequence, 0, step.group.rank()));
  }
  /// A partial sum that differs from rank to rank, in the symmetric heap like a product's output.
  PendingReduction pending() const {
    const Group& group = step.group;
    Tensor y = group.empty({step.sequence.size(), 1, h}, dtype);
    y.copy_(random_tensor({step.sequence.size(), 1, h}, uint64_t(100 + group.rank()), dtype));
    if (!has_bias) return {Placed<Partial>(y), nullptr};
    const ParameterPtr bias =
        make_parameter("bias", {h}, base::ShardRule::replicated(), Init::constant(0), group, dtype);
    bias->value.copy_(random_tensor({h}, 2, dtype));
    return {Placed<Partial>(y), bias};
  }
  template <class Stream>
  DeferredReduction<Stream> deferred() const {
    return DeferredReduction<Stream>(x<Stream>()) + DeferredReduction<Stream>(pending());
  }
  RmsNorm norm() const { return {random_tensor({h}, 3, dtype), kEps}; }
};

struct SumAndNorm {
  Tensor sum, norm;
};

template <ResidualStream Stream>
SumAndNorm one_by_one(const Case& c) {
  const Tensor sum = (c.x<Stream>() + reduce<Stream>(c.pending(), c.step)).local();
  return {sum, kernels::rms_norm(sum, c.norm().weight, kEps)};
}

template <ResidualStream Stream>
SumAndNorm in_one_pass(const Case& c) {
  auto x = c.deferred<Stream>();
  const Tensor norm = reduce_and_rms_norm(x, c.norm(), c.step).local();
  EXPECT_FALSE(x.pending);
  return {x.value->local(), norm};
}

struct Spent {
  Counters before;
  Group group;
  explicit Spent(const Group& counted) : before(counted.counters()), group(counted) {}
  Counters operator()() const { return group.counters() - before; }
};

template <ResidualStream Stream>
void check(const Case& c) {
  const Spent separately(c.step.group);
  const SumAndNorm expected = one_by_one<Stream>(c);
  const Counters sum = separately();
  const Spent at_once(c.step.group);
  const SumAndNorm got = in_one_pass<Stream>(c);
  const Counters fused = at_once();
  EXPECT_TRUE(same_bits(got.sum, expected.sum)) << c.dtype << " " << c.h;
  EXPECT_TRUE(same_bits(got.norm, expected.norm)) << c.dtype << " " << c.h;
  EXPECT_EQ(fused.total().calls, sum.total().calls);
  EXPECT_EQ(fused.total().bytes, sum.total().bytes);
  const Op op = std::is_same_v<Stream, Invariant> ? Op::all_reduce : Op::reduce_scatter;
  EXPECT_EQ(fused[op], fused.total());
}

void check_both(const Case& c) {
  check<Invariant>(c);
  check<SequenceShard>(c);
}

void for_each_group(const std::function<void(const Group&)>& body) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& ranks_group) {
      const at::NoGradGuard no_grad;
      for (const Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) body(group);
    });
  }
}

TEST(ReduceAndRmsNorm, HasTheBitsAndTrafficOfTheSeparateOps) {
  for_each_group([](const Group& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const int64_t rows : {1, 2, 7, 33}) {
        for (const int64_t h : {5, 64, 515}) {
          for (const bool has_bias : {false, true}) check_both({Step(group, rows), h, has_bias, dtype});
        }
      }
    }
  });
}

// A message larger than kOneShotBytes, of which each rank reduces a slice.
TEST(ReduceAndRmsNorm, HasTheBitsOfTheSeparateOpsInTwoShots) {
  for_each_group([](const Group& group) {
    const int64_t rows = 37, h = kOneShotBytes / 2 / rows + 1;
    check_both({Step(group, rows), h, /*has_bias=*/true, at::kBFloat16});
  });
}

TEST(ReduceAndRmsNorm, CopiesNothingOnSharedMemory) {
  testing::on_ranks(3, [](const Group& group) {
    const at::NoGradGuard no_grad;
    const Case c{Step(group, 3), 515, /*has_bias=*/true, at::kFloat};
    const Spent spent(group);
    in_one_pass<Invariant>(c);
    in_one_pass<SequenceShard>(c);
    EXPECT_EQ(spent().total().copied_bytes, 0);
  });
}

// The norm of a sequence shard is gathered next; that of an Invariant residual stream is not.
TEST(ReduceAndRmsNorm, WritesShardsToTheSymmetricHeap) {
  testing::on_ranks(2, [](const Group& group) {
    const at::NoGradGuard no_grad;
    const Case c{Step(group, 4), 64, /*has_bias=*/false, at::kFloat};
    const auto is_shared = [&](const Tensor& x) { return group.symmetric_heap()->contains(x); };
    EXPECT_TRUE(is_shared(in_one_pass<SequenceShard>(c).norm));
    EXPECT_FALSE(is_shared(in_one_pass<Invariant>(c).norm));
  });
}

TEST(PendingReduction, ReducedEqualsTheRowProduct) {
  for_each_case({{7, 10, 5}, {2, 3, 3, /*has_bias=*/false}}, [](const LinearCase& linear, testing::Path path,
                                                                const Group& group) {
    const at::NoGradGuard no_grad;
    const Step step = step_on(group, path, linear.sequence);
    const base::Split features = base::Split::even("features", linear.in, group.size());
    const LinearParameters w =
        linear.parameters(base::ShardRule::sharded(1, features), base::ShardRule::replicated(), group);
    const Placed<Sharded<kFeature>> x(slice_of(linear.x(), features, -1, group.rank()));
    const auto compare = [&]<class Stream>(Stream) {
      EXPECT_TRUE(same_bits(reduce<Stream>(pending_row_product<Stream>(x, w, step), step).local(),
                            row_product<Stream>(x, w, step).local()));
    };
    compare(Invariant());
    compare(SequenceShard());
  });
}

TEST(DeferredReduction, IsReducedOnce) {
  for_each_group([](const Group& group) {
    const Case c{Step(group, 5), 64, /*has_bias=*/true, at::kFloat};
    const Tensor expected = one_by_one<Invariant>(c).sum;
    auto x = c.deferred<Invariant>();
    const Spent spent(group);
    EXPECT_TRUE(same_bits(x.reduced(c.step).local(), expected));
    EXPECT_TRUE(same_bits(x.reduced(c.step).local(), expected));
    EXPECT_EQ(spent().total().calls, group.size() > 1 ? 1 : 0);
  });
}

}  // namespace
}  // namespace shardwise::parallel::deferred_reduction_test

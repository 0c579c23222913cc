// Why the pair is column then row: the same two products in both orders, and the bytes that each order sends.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "shardwise/nn/linear.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::theory::order_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using nn::Invariant;
using nn::Placed;

constexpr int64_t kLength = 6, kBatch = 2, kHidden = 12, kFfn = 48;  // all divide by 2, 3 and 4

void draw_(const nn::ParameterPtr& parameter, const Group& group) {
  parallel::initialize_(*parameter, kernels::RandomKey::of(1), group);
  parallel::zero_grad_(*parameter);
}

// φ(u) = u² + u: elementwise and nonlinear.
Tensor phi(const Tensor& u) {
  return u * u + u;
}

Placed<Invariant> column_then_row(const Placed<Invariant>& x, const nn::Step& step) {
  const Split middle = Split::even("middle", kFfn, step.group.size());
  const nn::ColumnParallelLinear first("first", {kHidden, kFfn}, ShardRule::sharded(0, middle), step.group,
                                       at::kDouble);
  const nn::RowParallelLinear second("second", {kFfn, kHidden}, ShardRule::sharded(1, middle), step.group,
                                     at::kDouble);
  draw_(first.weight(), step.group), draw_(second.weight(), step.group);
  const auto u = first(x, step);
  return second.to<Invariant>(Placed<nn::Sharded<nn::kFeature>>(phi(u.local())), step);
}

Placed<Invariant> row_then_column(const Placed<Invariant>& x, const nn::Step& step) {
  const Split ends = Split::even("ends", kHidden, step.group.size());
  const nn::RowParallelLinear first("first", {kHidden, kFfn}, ShardRule::sharded(1, ends), step.group,
                                    at::kDouble);
  const nn::ColumnParallelLinear second("second", {kFfn, kHidden}, ShardRule::sharded(0, ends), step.group,
                                        at::kDouble);
  draw_(first.weight(), step.group), draw_(second.weight(), step.group);
  const auto u = first.to<Invariant>(x, step);
  return second.gather_output<Invariant>(Placed<Invariant>(phi(u.local())), step);
}

using Program = Placed<Invariant> (*)(const Placed<Invariant>&, const nn::Step&);

struct Pass {
  Tensor z, dx;
  comm::Counters forward, backward;
};

Pass run(Program program, const Group& group) {
  const Tensor x = random_tensor({kLength, kBatch, kHidden}, 1).requires_grad_();
  const comm::Counters before = group.counters();
  const Tensor z = program(Placed<Invariant>(x), nn::Step(group, kLength)).local();
  const comm::Counters between = group.counters();
  z.backward(random_tensor({kLength, kBatch, kHidden}, 2));
  return {z.detach(), x.grad(), between - before, group.counters() - between};
}

/// Returns the bytes that a rank sends in an all_gather of `width` fp64 numbers per token, half of an
/// all_reduce's.
int64_t sent(int64_t width, int ranks) {
  return kLength * kBatch * width * 8 * (ranks - 1) / ranks;
}

void for_each_size(Program program, const std::function<void(const Pass&, int ranks)>& check) {
  const Pass alone = run(column_then_row, Group());
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](const Group& group) {
      const Pass pass = run(program, group);
      // Sums of at most 48 terms in fp64, in another order, differ by about 1e-15.
      EXPECT_LE(relative_error(pass.z, alone.z), 1e-13);
      EXPECT_LE(relative_error(pass.dx, alone.dx), 1e-13);
      check(pass, ranks);
    });
  }
}

TEST(Order, ColumnThenRowNeedsOneAllReduceEachWay) {
  for_each_size(column_then_row, [](const Pass& pass, int ranks) {
    for (const comm::Counters& way : {pass.forward, pass.backward}) {
      EXPECT_EQ(way.total().calls, 1);
      EXPECT_EQ(way[Op::all_reduce].bytes, 2 * sent(kHidden, ranks));
    }
  });
}

TEST(Order, RowThenColumnReducesTheIntermediateAndGathersTheOutput) {
  for_each_size(row_then_column, [](const Pass& pass, int ranks) {
    for (const comm::Counters& way : {pass.forward, pass.backward}) {
      EXPECT_EQ(way.total().calls, 2);
      EXPECT_EQ(way[Op::all_reduce].bytes, 2 * sent(kFfn, ranks));
      EXPECT_EQ(way[Op::all_gather].bytes, sent(kHidden, ranks));
    }
  });
}

}  // namespace
}  // namespace shardwise::testing::theory::order_test

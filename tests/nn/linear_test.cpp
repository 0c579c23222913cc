// The layers' options: gathered outputs and inputs, unsharded inputs, omitted bias, initialization.
// tests/parallel covers the products.
#include "shardwise/nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "tests/support/error_text.h"
#include "tests/support/layers.h"
#include "tests/support/placed.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::linear_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::LocalValue;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;
using testing::Used;
using testing::used;

constexpr double kBound = 1e-14;
constexpr int64_t kSequenceLength = 5, kBatch = 2, kIn = 7, kOut = 10;

const std::vector<int64_t> kInputShape = {kSequenceLength, kBatch, kIn},
                           kOutputShape = {kSequenceLength, kBatch, kOut};

Tensor full_weight() {
  return random_tensor({kOut, kIn}, 1);
}
Tensor full_bias() {
  return random_tensor({kOut}, 2);
}
Tensor full_x() {
  return random_tensor(kInputShape, 3);
}

void fill_(const ParameterPtr& parameter, const Tensor& full, int rank) {
  const at::NoGradGuard no_grad;
  parameter->value.copy_(slice_of(full, parameter->rule, rank));
  parallel::zero_grad_(*parameter);
}

LinearOptions options() {
  return testing::with_bias(kIn, kOut);
}

ColumnParallelLinear column(const Group& group) {
  const Split features = Split::even("features", kOut, group.size());
  ColumnParallelLinear linear("column", options(), ShardRule::sharded(0, features), group, at::kDouble);
  fill_(linear.weight(), full_weight(), group.rank());
  fill_(linear.bias(), full_bias(), group.rank());
  return linear;
}

RowParallelLinear row(const Group& group) {
  const Split features = Split::even("features", kIn, group.size());
  RowParallelLinear linear("row", options(), ShardRule::sharded(1, features), group, at::kDouble);
  fill_(linear.weight(), full_weight(), group.rank());
  fill_(linear.bias(), full_bias(), group.rank());
  return linear;
}

void for_each_group(const std::function<void(const Group&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [&](const Group& group) {
      check(group);
      check(group.without_symmetric_heap());
    });
  }
}

Tensor rows_of(const Tensor& x) {
  return x.reshape({-1, x.size(2)});
}

// Compares the gradients of this rank's shards with those of y = x Wᵀ + b for unsharded x and dy.
void check_column_gradients(const ColumnParallelLinear& linear, const Tensor& dy, int rank) {
  const Tensor weight_gradient = rows_of(dy).t().matmul(rows_of(full_x()));
  EXPECT_LE(
      relative_error(linear.weight()->main_grad, slice_of(weight_gradient, linear.weight()->rule, rank)),
      kBound);
  EXPECT_LE(relative_error(linear.bias()->main_grad, slice_of(rows_of(dy).sum(0), linear.bias()->rule, rank)),
            kBound);
}

TEST(ColumnParallelLinear, GatherOutputToInvariantSlicesInBackward) {
  for_each_group([](const Group& group) {
    const ColumnParallelLinear linear = column(group);
    const Tensor x = full_x().requires_grad_(), dy = random_tensor(kOutputShape, 4);
    const Tensor y =
        linear.gather_output<Invariant>(Placed<Invariant>(x), Step(group, kSequenceLength)).local();
    EXPECT_LE(relative_error(y, at::linear(full_x(), full_weight(), full_bias())), kBound);
    y.backward(dy);
    EXPECT_LE(relative_error(x.grad(), dy.matmul(full_weight())), kBound);
    check_column_gradients(linear, dy, group.rank());
  });
}

TEST(ColumnParallelLinear, GatherOutputToReplicatedReduceScattersInBackward) {
  for_each_group([](const Group& group) {
    const ColumnParallelLinear linear = column(group);
    const Step step(group, kSequenceLength);
    const testing::GlobalSpec terms{kOutputShape, Split::unsharded("unused", 1), 4};
    const Tensor dy = LocalValue<Partial>::sum(terms, group.size());
    const Tensor x = slice_of(full_x(), step.sequence, 0, group.rank()).requires_grad_();
    const Tensor y = linear.gather_output<Replicated>(Placed<Sharded<kSequence>>(x), step).local();
    EXPECT_LE(relative_error(y, at::linear(full_x(), full_weight(), full_bias())), kBound);
    y.backward(LocalValue<Partial>::local(terms, group));
    EXPECT_LE(relative_error(x.grad(), slice_of(dy.matmul(full_weight()), step.sequence, 0, group.rank())),
              kBound);
    check_column_gradients(linear, dy, group.rank());
  });
}

TEST(ColumnParallelLinear, GatherInputEqualsTheUnshardedProduct) {
  for_each_group([](const Group& group) {
    const ColumnParallelLinear linear = column(group);
    const Step step(group, kSequenceLength);
    const Split features = Split::even("in", kIn, group.size());
    const Tensor x = slice_of(full_x(), features, -1, group.rank()).requires_grad_();
    const Tensor dy = random_tensor(kOutputShape, 4);
    const Split outputs = linear.weight()->rule.segments[0].split;
    const comm::Counters before = group.counters();
    const Tensor y = linear.gather_input(Placed<Sharded<kFeature>>(x), features, step).local();
    const comm::Counters forward = group.counters() - before;
    y.backward(slice_of(dy, outputs, -1, group.rank()));
    const comm::Counters both = group.counters() - before;
    const Tensor expected = at::linear(full_x(), full_weight(), full_bias());
    EXPECT_LE(relative_error(y, slice_of(expected, outputs, -1, group.rank())), kBound);
    EXPECT_LE(relative_error(x.grad(), slice_of(dy.matmul(full_weight()), features, -1, group.rank())),
              kBound);
    check_column_gradients(linear, dy, group.rank());
    const int64_t once = group.size() > 1;
    EXPECT_EQ(forward[comm::Op::all_gather].calls, once);
    EXPECT_EQ(forward.total().calls, once);
    EXPECT_EQ(both[comm::Op::reduce_scatter].calls, once);
    EXPECT_EQ(both.total().calls, 2 * once);
  });
}

TEST(ColumnParallelLinear, GatherInputRejectsASplitOfAnotherSize) {
  const ColumnParallelLinear linear = column(Group());
  const Placed<Sharded<kFeature>> x(full_x());
  const Step step(Group(), kSequenceLength);
  EXPECT_EQ(test::error_text([&] { linear.gather_input(x, Split::even("in", kIn + 1, 1), step); }),
            "column.weight: the input must have 7 features; got a split of 8");
}

TEST(ColumnParallelLinear, WithoutBiasOmitsTheBias) {
  for_each_group([](const Group& group) {
    const ColumnParallelLinear linear = column(group);
    const Tensor y = linear.without_bias(Placed<Invariant>(full_x()), Step(group, kSequenceLength)).local();
    const Tensor expected = slice_of(at::linear(full_x(), full_weight()),
                                     linear.bias()->rule.segments[0].split, -1, group.rank());
    EXPECT_LE(relative_error(y, expected), kBound);
    y.backward(at::zeros_like(y) + 1);
    EXPECT_EQ(linear.bias()->main_grad.abs().sum().item<double>(), 0);
  });
}

TEST(ColumnParallelLinear, RejectsARuleOfAnotherSize) {
  const Split features = Split::even("features", kOut, 1);
  const auto make = [&](const ShardRule& rule) {
    ColumnParallelLinear("c", options(), rule, Group(), at::kDouble);
  };
  EXPECT_THROW(make(ShardRule::sharded(0, Split::even("features", kOut + 1, 1))), c10::ValueError);
  EXPECT_THROW(make(ShardRule::sharded(1, features)), c10::ValueError);
  EXPECT_THROW(make(ShardRule::replicated()), c10::ValueError);
}

TEST(ColumnParallelLinear, GatherOutputRejectsFusedFeatures) {
  const Split half = Split::even("half", kOut / 2, 1);
  const ColumnParallelLinear fused("c", options(), {0, {{half}, {half}}}, Group(), at::kDouble);
  const Step step(Group(), kSequenceLength);
  EXPECT_THROW(fused.gather_output<Invariant>(Placed<Invariant>(full_x()), step), c10::ValueError);
}

TEST(RowParallelLinear, SlicesAReplicatedInput) {
  for_each_group([](const Group& group) {
    const RowParallelLinear linear = row(group);
    const Step step(group, kSequenceLength);
    const Tensor x = full_x().requires_grad_(), dy = random_tensor(kOutputShape, 4);
    const Tensor y = linear.to<Invariant>(Placed<Replicated>(x), step).local();
    EXPECT_LE(relative_error(y, at::linear(full_x(), full_weight(), full_bias())), kBound);
    y.backward(dy);
    const Tensor dx = dy.matmul(full_weight());  // this rank's partial sum: of its features
    const base::Range local = linear.weight()->rule.segments[0].range(group.rank());
    Tensor term = at::zeros_like(dx);
    term.narrow(-1, local.begin, local.size()).copy_(dx.narrow(-1, local.begin, local.size()));
    EXPECT_LE(relative_error(x.grad(), term), kBound);
  });
}

TEST(RowParallelLinear, SlicesAnInvariantInput) {
  for_each_group([](const Group& group) {
    const RowParallelLinear linear = row(group);
    const Step step(group, kSequenceLength);
    const Tensor x = full_x().requires_grad_();
    const Tensor dy = slice_of(random_tensor(kOutputShape, 4), step.sequence, 0, group.rank());
    const Tensor y = linear.to<Sharded<kSequence>>(Placed<Invariant>(x), step).local();
    const Tensor expected = at::linear(full_x(), full_weight(), full_bias());
    EXPECT_LE(relative_error(y, slice_of(expected, step.sequence, 0, group.rank())), kBound);
    y.backward(dy);
    EXPECT_LE(relative_error(x.grad(), random_tensor(kOutputShape, 4).matmul(full_weight())), kBound);
  });
}

void expect(const comm::Counters& counters, comm::Op op, int64_t bytes) {
  EXPECT_EQ(counters[op].calls, bytes > 0);
  EXPECT_EQ(counters[op].bytes, bytes);
}

// docs/algorithms.md §3, besides the all_reduce of f or f*.
TEST(LinearLayers, CallTheDocumentedCollectivesForUnshardedTensors) {
  testing::on_ranks(3, [](const Group& group) {
    const ColumnParallelLinear up = column(group);
    const RowParallelLinear down = row(group);
    const Step step(group, kSequenceLength);
    const int64_t row_bytes = kSequenceLength * kBatch * 8, others = group.size() - 1;
    const auto local = [&](const ParameterPtr& weight) {
      return weight->rule.segments[0].range(group.rank()).size() * row_bytes;
    };
    const auto x = [&] { return full_x().requires_grad_(); };
    const Used same =
        used(group, [&] { return up.gather_output<Invariant>(Placed<Invariant>(x()), step).local(); });
    expect(same.forward, comm::Op::all_gather, local(up.weight()) * others);
    EXPECT_EQ(same.backward.total().calls, 1) << "f alone";
    const Used different =
        used(group, [&] { return up.gather_output<Replicated>(Placed<Invariant>(x()), step).local(); });
    expect(different.forward, comm::Op::all_gather, local(up.weight()) * others);
    expect(different.backward, comm::Op::reduce_scatter, kOut * row_bytes - local(up.weight()));
    EXPECT_EQ(different.backward.total().calls, 2);

    const Used full = used(group, [&] { return down.to<Invariant>(Placed<Invariant>(x()), step).local(); });
    EXPECT_EQ(full.forward.total().calls, 1) << "f* alone";
    expect(full.backward, comm::Op::all_gather, local(down.weight()) * others);
    EXPECT_EQ(full.backward.total().calls, 1);
    const Used terms = used(group, [&] { return down.to<Invariant>(Placed<Replicated>(x()), step).local(); });
    EXPECT_EQ(terms.forward.total().calls, 1);
    EXPECT_EQ(terms.backward.total().calls, 0);
  });
}

TEST(RowParallelLinear, BiasGradientIsPartialOnlyUnderSp) {
  for_each_group([](const Group& group) {
    const RowParallelLinear linear = row(group);
    const Step step(group, kSequenceLength);
    const Tensor own_x = slice_of(full_x(), linear.weight()->rule.segments[0].split, -1, group.rank());
    const Tensor dy = random_tensor(kOutputShape, 4), own_dy = slice_of(dy, step.sequence, 0, group.rank());
    linear.to<Sharded<kSequence>>(Placed<Sharded<kFeature>>(own_x), step).local().backward(own_dy);
    EXPECT_LE(relative_error(linear.bias()->main_grad, rows_of(own_dy).sum(0)), kBound);

    UsedParameters parameters;
    linear.append_parameters(parameters);
    EXPECT_EQ(specs_of<Sharded<kSequence>>(parameters)[1].gradient_over("tp"),
              parallel::GradientKind::partial);
    EXPECT_EQ(specs_of<Invariant>(parameters)[1].gradient_over("tp"), parallel::GradientKind::invariant);
    EXPECT_EQ(specs_of<Invariant>(parameters)[0].gradient_over("tp"), parallel::GradientKind::sharded);
  });
}

TEST(LinearInitialization, IsASliceOfTheFullLayer) {
  LinearOptions kaiming = options();
  kaiming.init = parallel::Init::kaiming_uniform(kIn);
  const auto drawn = [&](const Group& group) {
    const Split features = Split::even("features", kOut, group.size());
    const ColumnParallelLinear linear("column", kaiming, ShardRule::sharded(0, features), group, at::kDouble);
    for (const ParameterPtr& parameter : {linear.weight(), linear.bias()}) {
      parallel::initialize_(*parameter, kernels::RandomKey::of(3), group);
    }
    return linear;
  };
  const ColumnParallelLinear full = drawn(Group());
  const double bound = 1 / std::sqrt(static_cast<double>(kIn));
  EXPECT_LE(full.weight()->value.abs().max().item<double>(), bound);
  EXPECT_LE(full.bias()->value.abs().max().item<double>(), bound);
  EXPECT_GE(full.bias()->value.abs().max().item<double>(), bound / 4) << "torch.nn.Linear draws its bias too";
  for_each_group([&](const Group& group) {
    const ColumnParallelLinear local = drawn(group);
    EXPECT_TRUE(testing::same_bits(
        local.weight()->value, slice_of(full.weight()->value.detach(), local.weight()->rule, group.rank())));
    EXPECT_TRUE(testing::same_bits(local.bias()->value,
                                   slice_of(full.bias()->value.detach(), local.bias()->rule, group.rank())));
  });
}

}  // namespace
}  // namespace shardwise::nn::linear_test

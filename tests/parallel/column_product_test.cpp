#include "shardwise/parallel/column_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include "tests/parallel/linear_case.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::column_product_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using testing::Path;
using testing::relative_error;
using testing::same_bits;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;

constexpr double kBound = 1e-14;  // fp64 sums of at most 24 terms

struct Column {
  LinearCase full;
  Group group;
  Step step;
  Split features;
  LinearParameters w;

  Column(const LinearCase& linear, Path path, const Group& ranks)
      : full(linear),
        group(ranks),
        step(step_on(ranks, path, linear.sequence)),
        features(Split::even("features", linear.out, ranks.size())),
        w(linear.parameters(ShardRule::sharded(0, features), ShardRule::sharded(0, features), ranks)) {}

  Tensor local_dy() const { return slice_of(full.dy(), features, -1, group.rank()); }
  Tensor weight() const { return w.weight->value.detach(); }

  void check_output(const Tensor& y) const {
    const Tensor expected = at::linear(full.x(), full.weight(), full.has_bias ? full.bias() : Tensor());
    EXPECT_LE(relative_error(y, slice_of(expected, features, -1, group.rank())), kBound);
  }
  void check_weight_gradients() const {
    const Tensor dy = rows_of(local_dy());
    EXPECT_LE(relative_error(added(w.weight), at::mm(dy.t(), rows_of(full.x()))), kBound);
    if (w.bias) {
      EXPECT_LE(relative_error(added(w.bias), dy.sum(0)), kBound);
    }
  }
  /// The output for rows that this rank holds. There is no sum over ranks, so the bits must be equal.
  Tensor local_output(const Tensor& x) const {
    const Tensor y = local_product(rows_of(x), weight().t()).view({x.size(0), x.size(1), weight().size(0)});
    return w.bias ? y + w.bias->value.detach() : y;
  }
  Tensor input_gradient() const { return at::matmul(full.dy(), full.weight()); }
};

template <class P>
Tensor run(const Column& column, const Tensor& x) {
  const Tensor x_before = x.detach().clone(), dy = column.local_dy();
  const Tensor y = column_product(Placed<P>(x), column.w, column.step).local();
  y.backward(dy);
  EXPECT_TRUE(same_bits(x.detach(), x_before)) << "the input was changed";
  EXPECT_TRUE(same_bits(dy, column.local_dy())) << "the output's gradient was changed";
  column.check_output(y);
  column.check_weight_gradients();
  return y.detach();
}

TEST(ColumnProduct, InvariantInputAllReducesItsGradient) {
  for_each_case(column_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const Column column(linear, path, group);
    const Tensor x = linear.x().requires_grad_();
    const Tensor y = run<Invariant>(column, x);
    EXPECT_LE(relative_error(x.grad(), column.input_gradient()), kBound);
    EXPECT_TRUE(same_bits(y, column.local_output(linear.x())));
    Tensor first = x.grad().clone();
    group.broadcast_(first, 0);
    EXPECT_TRUE(same_bits(x.grad(), first)) << "ranks have different bits";
  });
}

TEST(ColumnProduct, SequenceShardsAllGatherAndReduceScatter) {
  for_each_case(column_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const Column column(linear, path, group);
    const Split& sequence = column.step.sequence;
    const Tensor x = slice_of(linear.x(), sequence, 0, group.rank()).requires_grad_();
    const Tensor y = run<SequenceShard>(column, x);
    EXPECT_LE(relative_error(x.grad(), slice_of(column.input_gradient(), sequence, 0, group.rank())), kBound);
    for (int rank = 0; rank < group.size(); ++rank) {  // the same local shapes, computed here
      const Tensor rows = slice_of(linear.x(), sequence, 0, rank);
      EXPECT_TRUE(same_bits(slice_of(y, sequence, 0, rank), column.local_output(rows)));
    }
  });
}

TEST(ColumnProduct, ReplicatedInputHasAPartialGradient) {
  for_each_case(column_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const Column column(linear, path, group);
    const Tensor x = linear.x().requires_grad_();
    const Tensor y = run<Replicated>(column, x);
    EXPECT_TRUE(same_bits(y, column.local_output(linear.x())));
    const Tensor partial = local_product(rows_of(column.local_dy()), column.weight()).view(x.sizes());
    EXPECT_TRUE(same_bits(x.grad(), partial));
  });
}

TEST(ColumnProduct, IsBitIdenticalOnEveryPath) {
  for_each_case(column_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const auto results = [&](Path on) {
      const Column column(linear, on, group);
      const Tensor x = slice_of(linear.x(), column.step.sequence, 0, group.rank()).requires_grad_();
      const Tensor y = run<SequenceShard>(column, x);
      return std::vector<Tensor>{y, x.grad(), column.w.weight->main_grad};
    };
    const auto expected = results(Path::symmetric), actual = results(path);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
  });
}

TEST(ColumnProduct, CallsTheDocumentedCollectives) {
  for_each_case(column_cases(), [](const LinearCase& linear, Path path, const Group& ranks) {
    const Group group = ranks.with_new_counters();
    const Column column(linear, path, group);
    const Group& counted = column.step.group;
    const Bytes bytes{group, linear.sequence, LinearCase::kBatch * linear.in * 8};
    const int calls = group.size() > 1;
    const auto check = [&](const comm::Counters& before, Op op, int64_t expected_calls,
                           int64_t expected_bytes) {
      const comm::OpCount used = (counted.counters() - before)[op];
      EXPECT_EQ(used.calls, calls * expected_calls) << name(op);
      EXPECT_EQ(used.bytes, calls * expected_bytes) << name(op);
    };
    const auto total_calls = [&](const comm::Counters& before) {
      return (counted.counters() - before).total().calls;
    };

    const Tensor x = linear.x().requires_grad_();
    comm::Counters before = counted.counters();
    const Tensor y = column_product(Placed<Invariant>(x), column.w, column.step).local();
    EXPECT_EQ(total_calls(before), 0);
    y.backward(column.local_dy());
    check(before, Op::all_reduce, 1, bytes.all_reduce());
    EXPECT_EQ(total_calls(before), calls);

    const Tensor x_shard = slice_of(linear.x(), column.step.sequence, 0, group.rank()).requires_grad_();
    before = counted.counters();
    const Tensor y_of_shard = column_product(Placed<SequenceShard>(x_shard), column.w, column.step).local();
    check(before, Op::all_gather, 1, bytes.all_gather());
    EXPECT_EQ(total_calls(before), calls);
    before = counted.counters();
    y_of_shard.backward(column.local_dy());
    const bool gathers_again = path != Path::gathered;
    check(before, Op::reduce_scatter, 1, bytes.reduce_scatter());
    check(before, Op::all_gather, gathers_again, gathers_again * bytes.all_gather());
    EXPECT_EQ(total_calls(before), calls * (1 + gathers_again));

    before = counted.counters();
    const Tensor x_used = linear.x().requires_grad_();
    column_product(Placed<Replicated>(x_used), column.w, column.step).local().backward(column.local_dy());
    EXPECT_EQ(total_calls(before), 0);
  });
}

TEST(ColumnProduct, ReadsShardsInPlaceWithoutCopying) {
  testing::on_ranks(2, [](const Group& group) {
    const LinearCase linear{6, 4, 8};
    const Column column(linear, Path::symmetric, group);
    Tensor x = group.empty({3, LinearCase::kBatch, 4}, at::kDouble);
    x.copy_(slice_of(linear.x(), column.step.sequence, 0, group.rank()));
    x.requires_grad_();
    const comm::Counters before = group.counters();
    const Tensor y = run<SequenceShard>(column, x);
    EXPECT_EQ((group.counters() - before)[Op::all_gather].copied_bytes, 0);
  });
}

TEST(ColumnProduct, RecordsNoNodeWithoutGradients) {
  for_each_case({{7, 5, 10}}, [](const LinearCase& linear, Path path, const Group& group) {
    const Column column(linear, path, group);
    const Tensor x = linear.x().requires_grad_();
    const Tensor x_shard = slice_of(linear.x(), column.step.sequence, 0, group.rank()).requires_grad_();
    const at::NoGradGuard no_grad;
    const Tensor of_full = column_product(Placed<Invariant>(x), column.w, column.step).local();
    const Tensor of_shard = column_product(Placed<SequenceShard>(x_shard), column.w, column.step).local();
    EXPECT_FALSE(of_full.grad_fn() || of_shard.grad_fn());
    EXPECT_FALSE(of_full.requires_grad() || of_shard.requires_grad());
    column.check_output(of_full);
    column.check_output(of_shard);
  });
}

// Frozen parameters get no gradient, and an input that needs none costs no collective.
TEST(ColumnProduct, ComputesOnlyTheRequiredGradients) {
  for_each_case({{7, 5, 10}}, [](const LinearCase& linear, Path path, const Group& ranks) {
    const Group group = ranks.with_new_counters();
    const Column column(linear, path, group);
    const Group& counted = column.step.group;
    comm::Counters before = counted.counters();
    column_product(Placed<Invariant>(linear.x()), column.w, column.step).local().backward(column.local_dy());
    EXPECT_EQ((counted.counters() - before).total().calls, 0);
    column.check_weight_gradients();

    column.w.weight->value.requires_grad_(false);
    column.w.bias->value.requires_grad_(false);
    const Tensor weight_before = column.w.weight->main_grad.clone(),
                 bias_before = column.w.bias->main_grad.clone();
    const Tensor x_shard = slice_of(linear.x(), column.step.sequence, 0, group.rank()).requires_grad_();
    const Tensor y = column_product(Placed<SequenceShard>(x_shard), column.w, column.step).local();
    y.backward(column.local_dy());
    const Tensor expected = slice_of(column.input_gradient(), column.step.sequence, 0, group.rank());
    EXPECT_LE(relative_error(x_shard.grad(), expected), kBound);
    EXPECT_TRUE(same_bits(column.w.weight->main_grad, weight_before));
    EXPECT_TRUE(same_bits(column.w.bias->main_grad, bias_before));
  });
}

TEST(ColumnProduct, AcceptsNonContiguousInputsAndGradients) {
  for_each_case({{7, 5, 10}}, [](const LinearCase& linear, Path path, const Group& group) {
    const Column column(linear, path, group);
    const Tensor shard = slice_of(linear.x(), column.step.sequence, 0, group.rank());
    const Tensor x = shard.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_();
    const Tensor dy = column.local_dy().transpose(0, 2).contiguous().transpose(0, 2);
    const Tensor y = column_product(Placed<SequenceShard>(x), column.w, column.step).local();
    y.backward(dy);
    column.check_output(y);
    column.check_weight_gradients();
    const Tensor expected = slice_of(column.input_gradient(), column.step.sequence, 0, group.rank());
    EXPECT_LE(relative_error(x.grad(), expected), kBound);
  });
}

TEST(ColumnProduct, RejectsInputsOfAnotherWidth) {
  const LinearCase linear{3, 4, 6};
  const Column column(linear, Path::symmetric, Group());
  const Tensor wide = testing::random_tensor({3, 2, 5}, 1), flat = testing::random_tensor({6, 4}, 1);
  EXPECT_THROW(column_product(Placed<Invariant>(wide), column.w, column.step), c10::ValueError);
  EXPECT_THROW(column_product(Placed<Invariant>(flat), column.w, column.step), c10::ValueError);
}

TEST(ColumnProduct, VerifyDetectsARankWithAnotherInput) {
  testing::on_ranks(3, [](const Group& group) {
    const LinearCase linear{3, 4, 6};
    Column column(linear, Path::symmetric, group);
    column.step.verify = Verify::on;
    const Tensor x = linear.x();
    EXPECT_NO_THROW(column_product(Placed<Invariant>(x), column.w, column.step));
    const Tensor different = group.rank() == 2 ? x + 1e-15 : x;
    EXPECT_THROW(column_product(Placed<Invariant>(different), column.w, column.step), c10::Error);
  });
}

}  // namespace
}  // namespace shardwise::parallel::column_product_test

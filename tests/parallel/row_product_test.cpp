#include "shardwise/parallel/row_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include "tests/parallel/linear_case.h"
#include "tests/support/error_text.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::row_product_test {
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
using FeatureShard = Sharded<kFeature>;

constexpr double kBound = 1e-14;  // fp64 sums of at most 24 terms

std::vector<LinearCase> row_cases() {
  return {{12, 24, 5}, {7, 10, 5}, {2, 3, 3}, {1, 7, 4, /*has_bias=*/false}};
}

struct Row {
  LinearCase full;
  Group group;
  Step step;
  Split features;
  LinearParameters w;

  Row(const LinearCase& linear, Path path, const Group& ranks)
      : full(linear),
        group(ranks),
        step(step_on(ranks, path, linear.sequence)),
        features(Split::even("features", linear.in, ranks.size())),
        w(linear.parameters(ShardRule::sharded(1, features), ShardRule::replicated(), ranks)) {}

  Tensor local_x() const { return slice_of(full.x(), features, -1, group.rank()); }
  Tensor weight() const { return w.weight->value.detach(); }
  Tensor product() const { return at::linear(full.x(), full.weight()); }
  Tensor output() const { return full.has_bias ? product() + full.bias() : product(); }
  Tensor local_rows(const Tensor& x) const { return slice_of(x, step.sequence, 0, group.rank()); }

  void check_gradients(const Tensor& x) const {
    const Tensor dx = slice_of(at::matmul(full.dy(), full.weight()), features, -1, group.rank());
    EXPECT_LE(relative_error(x.grad(), dx), kBound);
    EXPECT_LE(relative_error(added(w.weight), at::mm(rows_of(full.dy()).t(), rows_of(local_x()))), kBound);
  }
};

// Runs forward and backward and checks the gradients and that neither argument was changed. Returns y.
template <class To>
Tensor run(const Row& row, const Tensor& x, const Tensor& dy) {
  const Tensor x_before = x.detach().clone(), dy_before = dy.clone();
  const Tensor y = row_product<To>(Placed<FeatureShard>(x), row.w, row.step).local();
  y.backward(dy);
  EXPECT_TRUE(same_bits(x.detach(), x_before)) << "the input was changed";
  EXPECT_TRUE(same_bits(dy, dy_before)) << "the output's gradient was changed";
  row.check_gradients(x);
  return y.detach();
}

TEST(RowProduct, ToInvariantAllReduces) {
  for_each_case(row_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    const Tensor x = row.local_x().requires_grad_();
    const Tensor y = run<Invariant>(row, x, linear.dy());
    EXPECT_LE(relative_error(y, row.output()), kBound);
    EXPECT_TRUE(same_bits(x.grad(), local_product(rows_of(linear.dy()), row.weight()).view(x.sizes())));
    if (linear.has_bias) {
      EXPECT_LE(relative_error(added(row.w.bias), rows_of(linear.dy()).sum(0)), kBound);
    }
    Tensor first = y.clone();
    group.broadcast_(first, 0);
    EXPECT_TRUE(same_bits(y, first)) << "ranks have different bits";
  });
}

TEST(RowProduct, ToSequenceShardsReduceScattersAndAllGathers) {
  for_each_case(row_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    const Tensor x = row.local_x().requires_grad_(), dy = row.local_rows(linear.dy());
    const Tensor y = run<SequenceShard>(row, x, dy);
    EXPECT_LE(relative_error(y, row.local_rows(row.output())), kBound);
    if (linear.has_bias) {
      EXPECT_LE(relative_error(added(row.w.bias), rows_of(dy).sum(0)), kBound);
    }
    for (int rank = 0; rank < group.size(); ++rank) {  // the same local shapes, computed here
      const Tensor dy_rows = slice_of(linear.dy(), row.step.sequence, 0, rank);
      const Tensor dx_rows = slice_of(x.grad(), row.step.sequence, 0, rank);
      EXPECT_TRUE(same_bits(rows_of(dx_rows), local_product(rows_of(dy_rows), row.weight())));
    }
  });
}

TEST(RowProduct, ToPartialIsTheLocalProductWithoutBias) {
  for_each_case(row_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    const Tensor x = row.local_x().requires_grad_();
    const Tensor y = run<Partial>(row, x, linear.dy());
    EXPECT_TRUE(same_bits(y, local_product(rows_of(row.local_x()), row.weight().t()).view(y.sizes())));
    if (linear.has_bias) {
      EXPECT_EQ(added(row.w.bias).abs().sum().item<double>(), 0);
    }
    EXPECT_LE(relative_error(group.all_reduce(y), row.product()), kBound);
  });
}

TEST(RowProduct, AddsTheBiasOnce) {
  for_each_case({{5, 6, 3}}, [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    const at::NoGradGuard no_grad;
    row.w.weight->value.zero_();
    const Tensor y = row_product<Invariant>(Placed<FeatureShard>(row.local_x()), row.w, row.step).local();
    EXPECT_TRUE(same_bits(y, linear.bias().expand_as(y)));
    const Tensor y_shard =
        row_product<SequenceShard>(Placed<FeatureShard>(row.local_x()), row.w, row.step).local();
    EXPECT_TRUE(same_bits(y_shard, linear.bias().expand_as(y_shard)));
  });
}

TEST(RowProduct, IsBitIdenticalOnEveryPath) {
  for_each_case(row_cases(), [](const LinearCase& linear, Path path, const Group& group) {
    const auto results = [&](Path on) {
      const Row row(linear, on, group);
      const Tensor x = row.local_x().requires_grad_();
      const Tensor y = run<SequenceShard>(row, x, row.local_rows(linear.dy()));
      return std::vector<Tensor>{y, x.grad(), row.w.weight->main_grad};
    };
    const auto expected = results(Path::symmetric), actual = results(path);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
  });
}

TEST(RowProduct, CallsTheDocumentedCollectives) {
  for_each_case(row_cases(), [](const LinearCase& linear, Path path, const Group& ranks) {
    const Group group = ranks.with_new_counters();
    const Row row(linear, path, group);
    const Group& counted = row.step.group;
    const Bytes bytes{group, linear.sequence, LinearCase::kBatch * linear.out * 8};
    const int calls = group.size() > 1;
    const auto only = [&](Op op, int64_t expected_bytes, const std::function<void()>& act) {
      const comm::Counters before = counted.counters();
      act();
      const comm::Counters used = counted.counters() - before;
      EXPECT_EQ(used[op].calls, calls) << name(op);
      EXPECT_EQ(used[op].bytes, calls * expected_bytes) << name(op);
      EXPECT_EQ(used.total().calls, calls);
    };
    const auto none = [&](const std::function<void()>& act) {
      const comm::Counters before = counted.counters();
      act();
      EXPECT_EQ((counted.counters() - before).total().calls, 0);
    };
    const auto fresh_x = [&] { return Placed<FeatureShard>(row.local_x().requires_grad_()); };

    Tensor y;
    only(Op::all_reduce, bytes.all_reduce(),
         [&] { y = row_product<Invariant>(fresh_x(), row.w, row.step).local(); });
    none([&] { y.backward(linear.dy()); });
    only(Op::reduce_scatter, bytes.reduce_scatter(),
         [&] { y = row_product<SequenceShard>(fresh_x(), row.w, row.step).local(); });
    only(Op::all_gather, bytes.all_gather(), [&] { y.backward(row.local_rows(linear.dy())); });
    none([&] {
      y = row_product<Partial>(fresh_x(), row.w, row.step).local();
      y.backward(linear.dy());
    });
  });
}

TEST(RowProduct, RecordsNoNodeWithoutGradients) {
  for_each_case({{7, 10, 5}}, [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    const at::NoGradGuard no_grad;
    const Placed<FeatureShard> x(row.local_x().requires_grad_());
    const Tensor y = row_product<Invariant>(x, row.w, row.step).local();
    const Tensor y_shard = row_product<SequenceShard>(x, row.w, row.step).local();
    EXPECT_FALSE(y.grad_fn() || y_shard.grad_fn());
    EXPECT_FALSE(y.requires_grad() || y_shard.requires_grad());
    EXPECT_LE(relative_error(y, row.output()), kBound);
  });
}

TEST(RowProduct, AcceptsNonContiguousInputsAndGradients) {
  for_each_case({{7, 10, 5}}, [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    const auto strided = [](const Tensor& x) { return x.transpose(0, 2).contiguous().transpose(0, 2); };
    const Tensor x = strided(row.local_x()).requires_grad_();
    const Tensor y = run<SequenceShard>(row, x, strided(row.local_rows(linear.dy())));
    EXPECT_LE(relative_error(y, row.local_rows(row.output())), kBound);
  });
}

TEST(RowProduct, FrozenWeightsGetNoGradient) {
  for_each_case({{7, 10, 5}}, [](const LinearCase& linear, Path path, const Group& group) {
    const Row row(linear, path, group);
    row.w.weight->value.requires_grad_(false);
    row.w.bias->value.requires_grad_(false);
    const Tensor x = row.local_x().requires_grad_();
    row_product<SequenceShard>(Placed<FeatureShard>(x), row.w, row.step)
        .local()
        .backward(row.local_rows(linear.dy()));
    EXPECT_LE(relative_error(x.grad(), slice_of(at::matmul(linear.dy(), linear.weight()), row.features, -1,
                                                group.rank())),
              kBound);
    EXPECT_EQ(added(row.w.weight).abs().sum().item<double>(), 0);
    EXPECT_EQ(added(row.w.bias).abs().sum().item<double>(), 0);
  });
}

TEST(RowProduct, TrainsNoQuantizedWeights) {
  const Row row(LinearCase{3, 8, 6}, Path::symmetric, Group());
  const quant::Format int8{.bits = 8, .group_size = 8};
  const LinearParameters w{
      make_packed_parameter("w", {6, 8}, ShardRule::replicated(), base::Init::constant(0), int8, Group()),
      row.w.bias};
  const Tensor x = testing::random_tensor({3, 2, 8}, 1).requires_grad_();
  EXPECT_PRED2(test::contains,
               test::error_text([&] { row_product<Invariant>(Placed<FeatureShard>(x), w, row.step); }),
               "w: packed weights cannot be trained");
}

TEST(RowProduct, RejectsInputsOfAnotherShape) {
  const LinearCase linear{3, 4, 6};
  const Row row(linear, Path::symmetric, Group());
  const Tensor wide = testing::random_tensor({3, 2, 5}, 1), short_one = testing::random_tensor({2, 2, 4}, 1);
  EXPECT_THROW(row_product<Invariant>(Placed<FeatureShard>(wide), row.w, row.step), c10::ValueError);
  EXPECT_THROW(row_product<Invariant>(Placed<FeatureShard>(short_one), row.w, row.step), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::parallel::row_product_test

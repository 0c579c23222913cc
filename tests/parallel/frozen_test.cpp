// Frozen parameters in the two products: outputs and other gradients keep their bits, and gradients that are
// not required cost no communication.
#include <gtest/gtest.h>

#include <optional>

#include "shardwise/parallel/gradient_sync.h"
#include "shardwise/parallel/row_product.h"
#include "tests/parallel/linear_case.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::frozen_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using comm::Op;
using testing::Path;
using testing::slice_of;

using SequenceShard = Sharded<kSequence>;
using FeatureShard = Sharded<kFeature>;

struct Frozen {
  bool weight, bias, input;
};

/// A product with one input placement: how it is called, along which dims its input and its output gradient
/// are sharded, and the collective of its input gradient.
struct Product {
  const char* name;
  Tensor (*apply)(const Tensor& x, const LinearParameters& w, const Step& step);
  bool is_column;
  int64_t x_dim, dy_dim;  // 2: unsharded
  std::optional<Op> backward = {};
};

template <class P>
Tensor column(const Tensor& x, const LinearParameters& w, const Step& step) {
  return column_product(Placed<P>(x), w, step).local();
}
template <class P>
Tensor row(const Tensor& x, const LinearParameters& w, const Step& step) {
  return row_product<P>(Placed<FeatureShard>(x), w, step).local();
}

constexpr int64_t kUnsharded = 2;
constexpr Product kProducts[] = {
    {"column of I", column<Invariant>, true, kUnsharded, kFeature, Op::all_reduce},
    {"column of S<0>", column<SequenceShard>, true, kSequence, kFeature, Op::reduce_scatter},
    {"column of R", column<Replicated>, true, kUnsharded, kFeature},
    {"row to I", row<Invariant>, false, kFeature, kUnsharded},
    {"row to S<0>", row<SequenceShard>, false, kFeature, kSequence, Op::all_gather},
    {"row to P", row<Partial>, false, kFeature, kUnsharded},
};

struct Results {
  Tensor y, dx;
  LinearParameters w;
  comm::Counters backward;
};

struct FrozenRun {
  const Product& product;
  const LinearCase& linear;
  Step step;
  Group group;
  Split features;

  FrozenRun(const Product& each, const LinearCase& of, Path path, const Group& ranks)
      : product(each),
        linear(of),
        step(step_on(ranks, path, of.sequence)),
        group(ranks),
        features(Split::even("features", each.is_column ? of.out : of.in, ranks.size())) {}

  Tensor local(const Tensor& full, int64_t dim) const {
    if (dim == kUnsharded) return full.clone();
    return slice_of(full, dim == kSequence ? step.sequence : features, dim, group.rank());
  }
  LinearParameters parameters(const Frozen& frozen) const {
    const ShardRule rule = ShardRule::sharded(product.is_column ? 0 : 1, features);
    const ShardRule bias = product.is_column ? rule : ShardRule::replicated();
    LinearParameters w = linear.parameters(rule, bias, group);
    if (frozen.weight) freeze_(*w.weight);
    if (frozen.bias && w.bias) freeze_(*w.bias);
    return w;
  }
  Results operator()(const Frozen& frozen) const {
    Results results{{}, {}, parameters(frozen), {}};
    const Tensor x = local(linear.x(), product.x_dim).requires_grad_(!frozen.input);
    results.y = product.apply(x, results.w, step);
    const comm::Counters before = group.counters();
    if (results.y.requires_grad()) results.y.backward(local(linear.dy(), product.dy_dim));
    results.backward = group.counters() - before;
    results.dx = x.grad();
    return results;
  }
};

void expect_same(const Tensor& got, const Tensor& expected, bool is_frozen, const std::string& what) {
  EXPECT_EQ(got.defined(), !is_frozen) << what;
  if (got.defined()) {
    EXPECT_TRUE(testing::same_bits(got, expected)) << what;
  }
}

void for_each_product(const std::function<void(const FrozenRun&)>& check) {
  for_each_case(column_cases(), [&](const LinearCase& linear, Path path, const Group& group) {
    for (const Product& product : kProducts) check(FrozenRun(product, linear, path, group));
  });
}

TEST(FrozenProduct, LeavesOtherResultsUnchanged) {
  for_each_product([](const FrozenRun& run) {
    const Results all = run({false, false, false});
    for (const Frozen& frozen : {Frozen{true, false, false},
                                 {false, true, false},
                                 {true, true, false},
                                 {false, false, true},
                                 {true, false, true},
                                 {false, true, true}}) {
      const Results got = run(frozen);
      EXPECT_TRUE(testing::same_bits(got.y, all.y)) << run.product.name;
      expect_same(got.dx, all.dx, frozen.input, std::string("dx of ") + run.product.name);
      expect_same(got.w.weight->main_grad, all.w.weight->main_grad, frozen.weight, run.product.name);
      if (got.w.bias)
        expect_same(got.w.bias->main_grad, all.w.bias->main_grad, frozen.bias, run.product.name);
    }
  });
}

TEST(FrozenProduct, RecordsNoNodeIfNothingIsTrained) {
  for_each_product([](const FrozenRun& run) { EXPECT_FALSE(run({true, true, true}).y.requires_grad()); });
}

// Only the weight gradient needs a column product's input to be gathered again; dX keeps its collective.
TEST(FrozenProduct, CommunicatesOnlyForTheInputGradient) {
  for_each_product([](const FrozenRun& run) {
    const comm::Counters used = run({true, false, false}).backward;
    const std::optional<Op> collective = run.product.backward;
    for (const Op op : {Op::all_reduce, Op::all_gather, Op::reduce_scatter})
      EXPECT_EQ(used[op].calls, collective == op && run.group.size() > 1)
          << run.product.name << ": " << name(op);
    EXPECT_EQ(used.total().calls, collective && run.group.size() > 1) << run.product.name;
    EXPECT_EQ(run({true, false, true}).backward.total().calls, 0) << run.product.name;
  });
}

// With a frozen weight the input is not saved: it is released as soon as the caller releases it.
TEST(FrozenProduct, SavesNoInput) {
  for_each_product([](const FrozenRun& run) {
    for (const bool is_frozen : {true, false}) {
      const LinearParameters w = run.parameters({is_frozen, false, false});
      Tensor x = run.local(run.linear.x(), run.product.x_dim).requires_grad_().clone();
      const c10::weak_intrusive_ptr<c10::StorageImpl> memory(x.storage().getWeakStorageImpl());
      const Tensor y = run.product.apply(x, w, run.step);
      x.reset();
      const bool saves_gathered =
          run.step.save_for_backward == SaveForBackward::gathered && run.product.x_dim == kSequence &&
          run.group.size() > 1;  // a copy; in a group of one the gathered input is the input
      EXPECT_EQ(memory.expired(), is_frozen || saves_gathered) << run.product.name;
    }
  });
}

TEST(FrozenParameter, HasNoGradientToZero) {
  const LinearCase linear{3, 4, 5};
  const LinearParameters w = linear.parameters(ShardRule::sharded(0, Split::unsharded("out", 5)),
                                               ShardRule::sharded(0, Split::unsharded("out", 5)), Group());
  EXPECT_FALSE(w.weight->is_frozen());
  freeze_(*w.weight);
  EXPECT_TRUE(w.weight->is_frozen());
  zero_grad_(*w.weight);
  EXPECT_FALSE(w.weight->main_grad.defined());
  EXPECT_FALSE(w.weight->main_grad_if_trainable().defined());
}

TEST(Parameter, BackwardBeforeZeroGradIsAnError) {
  const LinearCase linear{3, 4, 5};
  const LinearParameters w = linear.parameters(ShardRule::sharded(0, Split::unsharded("out", 5)),
                                               ShardRule::sharded(0, Split::unsharded("out", 5)), Group());
  w.weight->main_grad.reset();
  EXPECT_THROW(w.weight->main_grad_if_trainable(), c10::ValueError);
}

// Only trained parameters are sent and counted.
TEST(FrozenParameter, IsNeitherSynchronizedNorCounted) {
  testing::on_ranks(2, [](const Group& group) {
    const auto make = [&](const char* name) {
      const ParameterPtr p =
          make_parameter(name, {3}, ShardRule::replicated(), Init::constant(1), group, at::kDouble);
      zero_grad_(*p);
      p->main_grad.fill_(2);
      return p;
    };
    const ParameterPtr trained = make("trained"), frozen = make("frozen");
    freeze_(*frozen);
    const ParamSpecs specs = {ParamSpec::over_tp(trained, GradientKind::partial),
                              ParamSpec::over_tp(frozen, GradientKind::partial)};
    const comm::Counters before = group.counters();
    sync_gradients_(specs, group);
    EXPECT_EQ((group.counters() - before)[Op::all_reduce].bytes, Bytes({group, 3, 8}).all_reduce());
    EXPECT_EQ(gradient_norm(specs, NormOrder::one, group), 3 * 4.0);
    EXPECT_EQ(gradient_norm(specs, NormOrder::inf, group), 4.0);
    clip_gradients_(specs, 12, 6);
    EXPECT_NEAR(trained->main_grad[0].item<double>(), 2, 1e-5);
  });
}

}  // namespace
}  // namespace shardwise::parallel::frozen_test

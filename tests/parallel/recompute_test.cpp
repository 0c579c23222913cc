// Full recomputation of a sequence of layers. tests/model covers full models in every mode.
#include "shardwise/parallel/recompute.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::recompute_test {
namespace {

using at::Tensor;
using comm::Group;
using comm::Op;
using testing::random_tensor;
using testing::same_bits;

constexpr int64_t kLength = 5, kHidden = 6, kInner = 7;

/// The OutputUse of each call of forward.
using Calls = std::vector<OutputUse>;

Placed<Invariant> square(const Placed<Invariant>& x, Calls& calls, OutputUse use) {
  calls.push_back(use);
  return Placed<Invariant>(x.local() * x.local());
}

TEST(Recompute, RunsForwardAgainOnlyInBackward) {
  Calls calls;
  const Tensor x = random_tensor({kLength, 2, kHidden}, 1).requires_grad_();
  const auto y = recomputed(Placed<Invariant>(x), /*is_trained=*/false,
                            [&calls](const auto& input, OutputUse use) { return square(input, calls, use); });
  EXPECT_EQ(calls, Calls{OutputUse::needed});
  y.local().sum().backward();
  EXPECT_EQ(calls, (Calls{OutputUse::needed, OutputUse::discarded}));
  EXPECT_TRUE(same_bits(x.grad(), x.detach() * 2));
}

TEST(Recompute, RecordsNoNodeWithoutGradients) {
  Calls calls;
  const auto run = [&calls](const auto& input, OutputUse use) { return square(input, calls, use); };
  const Tensor x = random_tensor({kLength, 2, kHidden}, 1);
  EXPECT_FALSE(recomputed(Placed<Invariant>(x), /*is_trained=*/false, run).local().requires_grad());
  EXPECT_TRUE(recomputed(Placed<Invariant>(x), /*is_trained=*/true, run).local().requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(recomputed(Placed<Invariant>(x), /*is_trained=*/true, run).local().requires_grad());
}

TEST(Recompute, RegionsCanFollowAndContainOneAnother) {
  Calls calls;
  const auto inner = [&calls](const auto& x, OutputUse use) { return square(x, calls, use); };
  const auto outer = [&](const auto& x, OutputUse) {
    return recomputed(recomputed(x, false, inner), false, inner);
  };
  const Tensor x = random_tensor({kLength, 2, kHidden}, 1).requires_grad_();
  recomputed(Placed<Invariant>(x), false, outer).local().sum().backward();
  EXPECT_LE(testing::relative_error(x.grad(), 4 * x.detach().pow(3)), 1e-14);
}

/// An error in the second forward leaves backward with its type, and the autograd engine stays usable.
TEST(Recompute, ErrorsOfTheSecondForwardKeepTheirType) {
  const Tensor x = random_tensor({kLength, 2, kHidden}, 1).requires_grad_();
  const auto fails = [](const Placed<Invariant>& input, OutputUse use) {
    TORCH_CHECK_VALUE(use == OutputUse::needed, "the second time");
    return Placed<Invariant>(input.local() * 2);
  };
  const auto y = recomputed(Placed<Invariant>(x), false, fails);
  EXPECT_THROW(y.local().sum().backward(), c10::ValueError);
  Calls calls;
  recomputed(Placed<Invariant>(x), false,
             [&calls](const auto& input, OutputUse use) { return square(input, calls, use); })
      .local()
      .sum()
      .backward();
  EXPECT_TRUE(same_bits(x.grad(), x.detach() * 2));
}

struct Mlp {
  LinearParameters up, down;

  explicit Mlp(const Group& group) {
    const base::Split inner = base::Split::even("inner", kInner, group.size());
    const auto make = [&](const char* name, std::vector<int64_t> shape, int64_t dim) {
      const ParameterPtr weight = make_parameter(name, std::move(shape), base::ShardRule::sharded(dim, inner),
                                                 Init::normal(1), group, at::kDouble);
      initialize_(*weight, kernels::RandomKey::of(1), group);
      zero_grad_(*weight);
      return weight;
    };
    up.weight = make("up", {kInner, kHidden}, 0);
    down.weight = make("down", {kHidden, kInner}, 1);
  }

  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step, OutputUse use) const {
    return row_product<Stream>(column_product(x, up, step), down, step, {use, {}});
  }
};

/// Counts the collectives in backward: those of the second forward, without its last reduction, and
/// backward's.
template <ResidualStream Stream>
void check_collectives(const Group& group, comm::Counters& backward) {
  const Mlp mlp(group);
  const Step step(group, kLength);
  const bool is_full = std::is_same_v<Stream, Invariant>;
  const Tensor full = random_tensor({kLength, 2, kHidden}, 1);
  const Tensor x = is_full ? full : testing::slice_of(full, step.sequence, 0, group.rank());
  const Tensor leaf = x.clone().requires_grad_();
  const auto y = recomputed(Placed<Stream>(leaf), /*is_trained=*/true,
                            [mlp, step](const auto& input, OutputUse use) { return mlp(input, step, use); });
  const comm::Counters before = group.counters();
  y.local().sum().backward();
  backward = group.counters() - before;
  const Mlp plain(group);
  const Tensor same = x.clone().requires_grad_();
  plain(Placed<Stream>(same), step, OutputUse::needed).local().sum().backward();
  EXPECT_TRUE(same_bits(leaf.grad(), same.grad()));
  EXPECT_TRUE(same_bits(mlp.up.weight->main_grad, plain.up.weight->main_grad));
  EXPECT_TRUE(same_bits(mlp.down.weight->main_grad, plain.down.weight->main_grad));
}

TEST(Recompute, OmitsTheLastReduction) {
  testing::on_ranks(3, [](const Group& group) {
    comm::Counters backward;
    check_collectives<Invariant>(group, backward);
    EXPECT_EQ(backward.total().calls, 1);  // dX of the column product
    check_collectives<Sharded<kSequence>>(group, backward);
    EXPECT_EQ(backward[Op::all_gather].calls, 3);  // x in the second forward; dY; x for the weight gradient
    EXPECT_EQ(backward[Op::reduce_scatter].calls, 1);
    EXPECT_EQ(backward.total().calls, 4);
  });
}

/// The row product saves RecomputeInput::from instead of its input.
TEST(Recompute, RecomputedInputGivesTheSameBits) {
  testing::on_ranks(2, [](const Group& group) {
    const Step step(group, kLength);
    const Mlp saved(group), recomputed_input(group);
    const int64_t local_features = saved.down.weight->value.size(1);
    const Tensor from = random_tensor({kLength, 2, local_features}, 3);
    const auto twice = [](const Tensor& x) { return x * 2; };
    const Tensor dy = random_tensor({kLength, 2, kHidden}, 4);
    const auto run = [&](const Mlp& mlp, const RowOptions& options) {
      const Placed<Sharded<kFeature>> x(twice(from));
      row_product<Invariant>(x, mlp.down, step, options).local().backward(dy);
      return mlp.down.weight->main_grad;
    };
    EXPECT_TRUE(same_bits(run(recomputed_input, {OutputUse::needed, {from, twice}}), run(saved, {})));
  });
}

}  // namespace
}  // namespace shardwise::parallel::recompute_test

// Operations on wrong placements must not compile. Each check is paired with one that must compile.
#include "shardwise/parallel/placement.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "shardwise/nn/block.h"
#include "shardwise/nn/embedding.h"
#include "shardwise/nn/positions.h"
#include "shardwise/parallel/collectives.h"
#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel::placement_test {
namespace {

using SequenceShard = Sharded<kSequence>;
using FeatureShard = Sharded<kFeature>;

template <class A, class B>
concept Adds = requires(const Placed<A>& a, const Placed<B>& b) {
  a + b;
};
template <class P>
concept Enters = requires(const Placed<P>& x, const Step& step) {
  enter(x, step);
};
template <class From, class To>
concept Leaves = requires(const Placed<From>& x, const Step& step) {
  leave<To>(x, step);
};
template <class P>
concept EntersColumn = requires(const Placed<P>& x, const LinearParameters& w, const Step& step) {
  column_product(x, w, step);
};
template <class P, class To>
concept EntersRow = requires(const Placed<P>& x, const LinearParameters& w, const Step& step) {
  row_product<To>(x, w, step);
};
template <class P>
concept Normalizes = requires(const nn::RMSNorm& norm, const Placed<P>& x, const nn::Step& step) {
  norm(x, step);
};
template <class P>
concept CentersAndScales = requires(const nn::Norm& norm, const Placed<P>& x, const nn::Step& step) {
  norm(x, step);
};
template <class P>
concept AddsPositions = requires(const nn::LearnedPositions& add, const Placed<P>& x, const nn::Step& step) {
  add(x, step);
};
template <class P>
concept ColumnAccepts = requires(const nn::ColumnParallelLinear& linear, const Placed<P>& x,
                                 const nn::Step& step) {
  linear(x, step);
  linear.without_bias(x, step);
};
template <class P>
concept ColumnGathers = requires(const nn::ColumnParallelLinear& linear, const Placed<P>& x,
                                 const base::Split& features, const nn::Step& step) {
  linear.gather_input(x, features, step);
};
template <class P, class To>
concept ColumnReturns = requires(const nn::ColumnParallelLinear& linear, const Placed<P>& x,
                                 const nn::Step& step) {
  linear.gather_output<To>(x, step);
};
template <class P, class To>
concept RowAccepts = requires(const nn::RowParallelLinear& linear, const Placed<P>& x, const nn::Step& step) {
  linear.to<To>(x, step);
};
template <class P>
concept DropsOut = requires(const Placed<P>& x, const nn::Step& step) {
  nn::dropout(x, step, nn::DropoutSite{0, nn::DropoutSite::Site::embedding});
};
template <class P>
concept Activates = requires(const Placed<P>& x) {
  nn::swiglu(x);
  nn::gelu(x, nullptr, kernels::Gelu::erf);
};
template <class P>
concept Attends = requires(const nn::CausalSelfAttention& attend, const Placed<P>& x, const nn::Step& step) {
  attend(x, step);
};
template <class P>
concept Gathers = requires(const Placed<P>& x, const base::Split& split, const comm::Group& group) {
  gather_to_invariant(x, split, group);
};
template <class P>
concept Slices = requires(const Placed<P>& x, const base::Split& split, const comm::Group& group) {
  slice<kFeature>(x, split, group);
};
template <class P>
concept Sums = requires(const Placed<P>& x, const comm::Group& group) {
  sum_to_replicated(x, group);
};
template <class P>
concept IsResidualStream = requires {
  typename nn::Block<P>;
};
template <class To>
concept Embeds = requires(const nn::VocabParallelEmbedding& table, const at::Tensor& ids,
                          const nn::Step& step) {
  table.to<To>(ids, step);
};

// A tensor gets a placement only explicitly, and only collectives change it.
static_assert(std::constructible_from<Placed<Invariant>, at::Tensor>);
static_assert(!std::convertible_to<at::Tensor, Placed<Invariant>>);
static_assert(!std::constructible_from<Placed<Replicated>, Placed<Invariant>>);
static_assert(!std::constructible_from<Placed<Invariant>, Placed<Partial>>);
static_assert(!Placement<int> && !Placement<at::Tensor>);

static_assert(Adds<Invariant, Invariant> && Adds<Partial, Partial> && Adds<SequenceShard, SequenceShard>);
static_assert(!Adds<Invariant, Replicated> && !Adds<Invariant, Partial> &&
              !Adds<SequenceShard, FeatureShard>);
static_assert(!Adds<Invariant, SequenceShard> && !Adds<Replicated, Partial>);

// A forgotten all_reduce: only the collectives that reduce a Partial accept it.
static_assert(Leaves<Partial, Invariant> && Leaves<Partial, SequenceShard>);
static_assert(!Leaves<Partial, Replicated> && !Leaves<Partial, FeatureShard> && !Leaves<Partial, Partial>);
static_assert(!Normalizes<Partial> && !DropsOut<Partial> && !Activates<Partial> && !EntersColumn<Partial>);
static_assert(!Attends<Partial> && !EntersRow<Partial, Invariant> && !Gathers<Partial> && !Slices<Partial>);

// A duplicate all_reduce: reductions accept only a Partial.
static_assert(Sums<Partial> && !Sums<Invariant> && !Sums<Replicated> && !Sums<SequenceShard>);
static_assert(!Leaves<Replicated, Invariant> && !Leaves<Invariant, Invariant> &&
              !Leaves<FeatureShard, Invariant>);

// A duplicate or forgotten f or g.
static_assert(Enters<Invariant> && Enters<SequenceShard>);
static_assert(!Enters<Replicated> && !Enters<Partial> && !Enters<FeatureShard> && !Enters<Sharded<1>>);
static_assert(EntersColumn<Invariant> && EntersColumn<SequenceShard> && EntersColumn<Replicated>);
static_assert(!EntersColumn<FeatureShard> && !EntersColumn<Sharded<1>>);

// Row-parallel products accept only sharded features and return the residual stream or a Partial.
static_assert(EntersRow<FeatureShard, Invariant> && EntersRow<FeatureShard, SequenceShard>);
static_assert(EntersRow<FeatureShard, Partial>);
static_assert(!EntersRow<Replicated, Invariant> && !EntersRow<Invariant, Invariant>);
static_assert(!EntersRow<SequenceShard, SequenceShard>);

// Unsharded where sharded is usual, and the reverse: each has a named op, whose type selects the backward.
static_assert(ColumnAccepts<Invariant> && ColumnAccepts<SequenceShard> && ColumnAccepts<Replicated>);
static_assert(!ColumnAccepts<FeatureShard> && !ColumnAccepts<Partial> && !ColumnAccepts<Sharded<1>>);
static_assert(ColumnGathers<FeatureShard>);
static_assert(!ColumnGathers<Invariant> && !ColumnGathers<Replicated> && !ColumnGathers<SequenceShard>);
static_assert(!ColumnGathers<Partial>);
static_assert(ColumnReturns<Invariant, Invariant> && ColumnReturns<Invariant, Replicated>);
static_assert(ColumnReturns<SequenceShard, Invariant> && ColumnReturns<Replicated, Replicated>);
static_assert(!ColumnReturns<Invariant, Partial> && !ColumnReturns<Invariant, FeatureShard>);
static_assert(!ColumnReturns<Partial, Invariant> && !ColumnReturns<FeatureShard, Invariant>);
static_assert(RowAccepts<FeatureShard, Invariant> && RowAccepts<FeatureShard, SequenceShard>);
static_assert(RowAccepts<Replicated, Invariant> && RowAccepts<Invariant, SequenceShard>);
static_assert(!RowAccepts<Partial, Invariant> && !RowAccepts<SequenceShard, SequenceShard>);
static_assert(!RowAccepts<FeatureShard, Replicated> && !RowAccepts<FeatureShard, FeatureShard>);
// A Replicated tensor is not a residual stream, and the reverse.
static_assert(!Adds<Replicated, Invariant> && !Enters<Replicated> && !Normalizes<Replicated>);

static_assert(Normalizes<Invariant> && Normalizes<SequenceShard>);
static_assert(!Normalizes<Replicated> && !Normalizes<FeatureShard>);
static_assert(CentersAndScales<Invariant> && CentersAndScales<SequenceShard>);
static_assert(!CentersAndScales<Partial> && !CentersAndScales<Replicated> && !CentersAndScales<FeatureShard>);
// Positions added to a Partial would be added once per rank.
static_assert(AddsPositions<Invariant> && AddsPositions<SequenceShard>);
static_assert(!AddsPositions<Partial> && !AddsPositions<Replicated> && !AddsPositions<FeatureShard>);
static_assert(DropsOut<Invariant> && DropsOut<SequenceShard> && !DropsOut<Replicated> &&
              !DropsOut<FeatureShard>);
static_assert(Activates<FeatureShard> && !Activates<Invariant> && !Activates<SequenceShard>);
static_assert(Attends<FeatureShard> && !Attends<SequenceShard> && !Attends<Invariant>);
static_assert(Gathers<FeatureShard> && Gathers<SequenceShard> && !Gathers<Invariant> && !Gathers<Replicated>);
static_assert(Slices<Invariant> && Slices<Replicated> && !Slices<FeatureShard>);
static_assert(IsResidualStream<Invariant> && IsResidualStream<SequenceShard>);
static_assert(!IsResidualStream<Replicated> && !IsResidualStream<Partial> && !IsResidualStream<FeatureShard>);
static_assert(Embeds<Invariant> && Embeds<SequenceShard> && !Embeds<Replicated> && !Embeds<Partial>);

template <class P, class Gradient>
inline constexpr bool has_gradient = std::same_as<typename GradientOf<P>::type, Gradient>;
static_assert(has_gradient<Invariant, Invariant> && has_gradient<FeatureShard, FeatureShard>);
static_assert(has_gradient<Replicated, Partial> && has_gradient<Partial, Replicated>);

TEST(Placement, AdditionAddsLocalTensors) {
  const at::Tensor a = at::tensor({1.0, 2.0}), b = at::tensor({10.0, 20.0});
  const Placed<Partial> sum = Placed<Partial>(a) + Placed<Partial>(b);
  EXPECT_TRUE(sum.local().equal(at::tensor({11.0, 22.0})));
  EXPECT_TRUE(a.equal(at::tensor({1.0, 2.0}))) << "an operand was changed";
}

}  // namespace
}  // namespace shardwise::parallel::placement_test

// What must not compile: the placements' whole point. Each rule has its twin that must.
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
concept ColumnTakes = requires(const nn::ColumnParallelLinear& linear, const Placed<P>& x,
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
concept ColumnGives = requires(const nn::ColumnParallelLinear& linear, const Placed<P>& x,
                               const nn::Step& step) {
  linear.gather_output<To>(x, step);
};
template <class P, class To>
concept RowTakes = requires(const nn::RowParallelLinear& linear, const Placed<P>& x, const nn::Step& step) {
  linear.to<To>(x, step);
};
template <class P>
concept DropsOut = requires(const Placed<P>& x, const nn::Step& step) {
  nn::dropout(x, step, nn::DropoutSite{0, nn::DropoutSite::embedding});
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
concept IsStream = requires {
  typename nn::Block<P>;
};
template <class To>
concept Embeds = requires(const nn::VocabParallelEmbedding& table, const at::Tensor& ids,
                          const nn::Step& step) {
  table.to<To>(ids, step);
};

// A tensor has no placement until somebody says so, and a placement changes only through a collective.
static_assert(std::constructible_from<Placed<Invariant>, at::Tensor>);
static_assert(!std::convertible_to<at::Tensor, Placed<Invariant>>);
static_assert(!std::constructible_from<Placed<Replicated>, Placed<Invariant>>);
static_assert(!std::constructible_from<Placed<Invariant>, Placed<Partial>>);
static_assert(!Placement<int> && !Placement<at::Tensor>);

static_assert(Adds<Invariant, Invariant> && Adds<Partial, Partial> && Adds<SequenceShard, SequenceShard>);
static_assert(!Adds<Invariant, Replicated> && !Adds<Invariant, Partial> &&
              !Adds<SequenceShard, FeatureShard>);
static_assert(!Adds<Invariant, SequenceShard> && !Adds<Replicated, Partial>);

// A forgotten all_reduce: a Partial goes nowhere but into the collective that sums it.
static_assert(Leaves<Partial, Invariant> && Leaves<Partial, SequenceShard>);
static_assert(!Leaves<Partial, Replicated> && !Leaves<Partial, FeatureShard> && !Leaves<Partial, Partial>);
static_assert(!Normalizes<Partial> && !DropsOut<Partial> && !Activates<Partial> && !EntersColumn<Partial>);
static_assert(!Attends<Partial> && !EntersRow<Partial, Invariant> && !Gathers<Partial> && !Slices<Partial>);

// A doubled one: what is summed already is not summed again.
static_assert(Sums<Partial> && !Sums<Invariant> && !Sums<Replicated> && !Sums<SequenceShard>);
static_assert(!Leaves<Replicated, Invariant> && !Leaves<Invariant, Invariant> &&
              !Leaves<FeatureShard, Invariant>);

// A doubled or forgotten entering.
static_assert(Enters<Invariant> && Enters<SequenceShard>);
static_assert(!Enters<Replicated> && !Enters<Partial> && !Enters<FeatureShard> && !Enters<Sharded<1>>);
static_assert(EntersColumn<Invariant> && EntersColumn<SequenceShard> && EntersColumn<Replicated>);
static_assert(!EntersColumn<FeatureShard> && !EntersColumn<Sharded<1>>);

// Row-parallel weights multiply sharded features only, and their sum goes to a stream or stays a Partial.
static_assert(EntersRow<FeatureShard, Invariant> && EntersRow<FeatureShard, SequenceShard>);
static_assert(EntersRow<FeatureShard, Partial>);
static_assert(!EntersRow<Replicated, Invariant> && !EntersRow<Invariant, Invariant>);
static_assert(!EntersRow<SequenceShard, SequenceShard>);

// Whole where sharded is usual and the reverse: each crossing has its own name, and its type picks the
// backward.
static_assert(ColumnTakes<Invariant> && ColumnTakes<SequenceShard> && ColumnTakes<Replicated>);
static_assert(!ColumnTakes<FeatureShard> && !ColumnTakes<Partial> && !ColumnTakes<Sharded<1>>);
static_assert(ColumnGathers<FeatureShard>);
static_assert(!ColumnGathers<Invariant> && !ColumnGathers<Replicated> && !ColumnGathers<SequenceShard>);
static_assert(!ColumnGathers<Partial>);
static_assert(ColumnGives<Invariant, Invariant> && ColumnGives<Invariant, Replicated>);
static_assert(ColumnGives<SequenceShard, Invariant> && ColumnGives<Replicated, Replicated>);
static_assert(!ColumnGives<Invariant, Partial> && !ColumnGives<Invariant, FeatureShard>);
static_assert(!ColumnGives<Partial, Invariant> && !ColumnGives<FeatureShard, Invariant>);
static_assert(RowTakes<FeatureShard, Invariant> && RowTakes<FeatureShard, SequenceShard>);
static_assert(RowTakes<Replicated, Invariant> && RowTakes<Invariant, SequenceShard>);
static_assert(!RowTakes<Partial, Invariant> && !RowTakes<SequenceShard, SequenceShard>);
static_assert(!RowTakes<FeatureShard, Replicated> && !RowTakes<FeatureShard, FeatureShard>);
// What was gathered for different work is no stream, nor the reverse: neither fits the other's consumers.
static_assert(!Adds<Replicated, Invariant> && !Enters<Replicated> && !Normalizes<Replicated>);

static_assert(Normalizes<Invariant> && Normalizes<SequenceShard>);
static_assert(!Normalizes<Replicated> && !Normalizes<FeatureShard>);
static_assert(CentersAndScales<Invariant> && CentersAndScales<SequenceShard>);
static_assert(!CentersAndScales<Partial> && !CentersAndScales<Replicated> && !CentersAndScales<FeatureShard>);
// Positions added to a Partial would be added once a rank.
static_assert(AddsPositions<Invariant> && AddsPositions<SequenceShard>);
static_assert(!AddsPositions<Partial> && !AddsPositions<Replicated> && !AddsPositions<FeatureShard>);
static_assert(DropsOut<Invariant> && DropsOut<SequenceShard> && !DropsOut<Replicated> &&
              !DropsOut<FeatureShard>);
static_assert(Activates<FeatureShard> && !Activates<Invariant> && !Activates<SequenceShard>);
static_assert(Attends<FeatureShard> && !Attends<SequenceShard> && !Attends<Invariant>);
static_assert(Gathers<FeatureShard> && Gathers<SequenceShard> && !Gathers<Invariant> && !Gathers<Replicated>);
static_assert(Slices<Invariant> && Slices<Replicated> && !Slices<FeatureShard>);
static_assert(IsStream<Invariant> && IsStream<SequenceShard>);
static_assert(!IsStream<Replicated> && !IsStream<Partial> && !IsStream<FeatureShard>);
static_assert(Embeds<Invariant> && Embeds<SequenceShard> && !Embeds<Replicated> && !Embeds<Partial>);

template <class P, class Gradient>
inline constexpr bool has_gradient = std::same_as<typename GradientOf<P>::type, Gradient>;
static_assert(has_gradient<Invariant, Invariant> && has_gradient<FeatureShard, FeatureShard>);
static_assert(has_gradient<Replicated, Partial> && has_gradient<Partial, Replicated>);

TEST(Placement, AddsWhatEachRankHolds) {
  const at::Tensor a = at::tensor({1.0, 2.0}), b = at::tensor({10.0, 20.0});
  const Placed<Partial> sum = Placed<Partial>(a) + Placed<Partial>(b);
  EXPECT_TRUE(sum.local().equal(at::tensor({11.0, 22.0})));
  EXPECT_TRUE(a.equal(at::tensor({1.0, 2.0}))) << "an operand was changed";
}

}  // namespace
}  // namespace shardwise::parallel::placement_test

#include "shardwise/nn/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::norm_test {
namespace {

using at::Tensor;
using comm::Group;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;

constexpr int64_t kSequenceLength = 5, kHidden = 6;
constexpr double kEps = 1e-2;  // large, so that a wrong place for it shows

// The weight, and the bias if the norm has one.
using Affine = std::vector<Tensor>;

Tensor scaled(const Tensor& x, const Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kEps) * weight;
}
Tensor formula(const RMSNorm&, const Tensor& x, const Affine& affine) {
  return scaled(x, affine[0]);
}
Tensor formula(const LayerNorm&, const Tensor& x, const Affine& affine) {
  return scaled(x - x.mean(-1, /*keepdim=*/true), affine[0]) + affine[1];
}

template <class Layer>
struct Case {
  Layer layer;
  UsedParameters parameters;

  explicit Case(const Group& group) : layer("norm", kHidden, kEps, group, at::kDouble) {
    layer.append_parameters(parameters);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].parameter->value.copy_(full_affine(i));
      parallel::zero_grad_(*parameters[i].parameter);
    }
  }
  static Tensor full_affine(size_t i) { return random_tensor({kHidden}, 10 + i); }
  Affine leaves() const {
    Affine leaves;
    for (size_t i = 0; i < parameters.size(); ++i) leaves.push_back(full_affine(i).requires_grad_());
    return leaves;
  }
};

Tensor unsharded(uint64_t seed) {
  return random_tensor({kSequenceLength, 2, kHidden}, seed);
}

// Compares forward and backward of this rank's rows with the formula.
template <class Layer, ResidualStream Stream>
void check(const Group& group, const Tensor& rows, const Tensor& dy) {
  const Case<Layer> local(group);
  const Tensor x = rows.clone().requires_grad_(), x_expected = rows.clone().requires_grad_();
  const Affine leaves = local.leaves();
  const comm::Counters before = group.counters();
  const Tensor y = Norm(local.layer)(Placed<Stream>(x), Step(group, kSequenceLength)).local();
  const Tensor expected = formula(local.layer, x_expected, leaves);
  EXPECT_LE(relative_error(y, expected), 1e-15);
  y.backward(dy);
  expected.backward(dy);
  EXPECT_LE(relative_error(x.grad(), x_expected.grad()), 1e-14);
  for (size_t i = 0; i < leaves.size(); ++i)
    EXPECT_LE(relative_error(local.parameters[i].parameter->main_grad, leaves[i].grad()), 1e-14);
  EXPECT_EQ((group.counters() - before).total().calls, 0);
  EXPECT_TRUE(testing::same_bits(x.detach(), rows)) << "the input was changed";
}

template <class Layer>
class Norms : public ::testing::Test {};
using Layers = ::testing::Types<RMSNorm, LayerNorm>;
TYPED_TEST_SUITE(Norms, Layers);

TYPED_TEST(Norms, EqualTheirFormulaOnTheFullSequence) {
  for (const int ranks : {1, 2}) {
    testing::on_ranks(
        ranks, [](const Group& group) { check<TypeParam, Invariant>(group, unsharded(2), unsharded(3)); });
  }
}

TYPED_TEST(Norms, EqualTheirFormulaOnSequenceShards) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& ranks_group) {
      for (const Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) {
        const base::Split sequence = Step(group, kSequenceLength).sequence;
        const int rank = group.rank();
        check<TypeParam, Sharded<kSequence>>(group, slice_of(unsharded(2), sequence, 0, rank),
                                             slice_of(unsharded(3), sequence, 0, rank));
      }
    });
  }
}

// Ranks process different rows of the residual stream under SP, and the same rows under TP.
TYPED_TEST(Norms, GradientsArePartialOnlyUnderSp) {
  const Case<TypeParam> local{Group()};
  for (size_t i = 0; i < local.parameters.size(); ++i) {
    EXPECT_EQ(specs_of<Sharded<kSequence>>(local.parameters)[i].gradient_over("tp"),
              parallel::GradientKind::partial);
    EXPECT_EQ(specs_of<Invariant>(local.parameters)[i].gradient_over("tp"),
              parallel::GradientKind::invariant);
  }
}

TYPED_TEST(Norms, AcceptEmptyShards) {
  testing::on_ranks(4, [](const Group& group) {
    const Case<TypeParam> local(group);
    const Step step(group, 2);  // two ranks hold no row
    const Tensor x = random_tensor({step.local_sequence().size(), 2, kHidden}, 1).requires_grad_();
    const Tensor y = local.layer(Placed<Sharded<kSequence>>(x), step).local();
    y.backward(y.detach());
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
}

// On shared memory the collective that follows reads the shard in place.
TYPED_TEST(Norms, WriteShardsToTheSymmetricHeap) {
  testing::on_ranks(2, [](const Group& group) {
    const Case<TypeParam> local(group);
    const Tensor x = random_tensor({2, 2, kHidden}, 1);
    const Step step(group, 4);
    EXPECT_TRUE(group.symmetric_heap()->contains(local.layer(Placed<Sharded<kSequence>>(x), step).local()));
    EXPECT_FALSE(group.symmetric_heap()->contains(local.layer(Placed<Invariant>(x), step).local()));
  });
}

TYPED_TEST(Norms, RecordNoNodeWithoutGradients) {
  const Case<TypeParam> local{Group()};
  const at::NoGradGuard no_grad;
  const Tensor y =
      local.layer(Placed<Invariant>(unsharded(2).requires_grad_()), Step(Group(), kSequenceLength)).local();
  EXPECT_FALSE(y.requires_grad());
  EXPECT_LE(relative_error(y, formula(local.layer, unsharded(2), local.leaves())), 1e-15);
}

// Freezes each parameter in turn: the other gradients keep their bits, and the frozen one is not computed.
TYPED_TEST(Norms, FrozenParametersLeaveOtherGradientsUnchanged) {
  const auto run = [](int frozen) {
    Case<TypeParam> local{Group()};
    if (frozen >= 0) parallel::freeze_(*local.parameters.at(frozen).parameter);
    const Tensor x = unsharded(2).requires_grad_();
    local.layer(Placed<Invariant>(x), Step(Group(), kSequenceLength)).local().backward(unsharded(3));
    Affine gradients = {x.grad()};
    for (const UsedParameter& used : local.parameters) gradients.push_back(used.parameter->main_grad);
    return gradients;
  };
  const Affine expected = run(-1);
  for (size_t frozen = 0; frozen + 1 < expected.size(); ++frozen) {
    const Affine got = run(static_cast<int>(frozen));
    for (size_t i = 0; i < got.size(); ++i) {
      if (i == frozen + 1) {
        EXPECT_FALSE(got[i].defined());
      } else {
        EXPECT_TRUE(testing::same_bits(got[i], expected[i]));
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::nn::norm_test

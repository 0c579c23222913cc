#include "shardwise/nn/mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>

#include "tests/support/layers.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::nn::mlp_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::random_tensor;
using testing::relative_error;
using testing::slice_of;
using testing::with_bias;

constexpr int64_t kSequenceLength = 5, kHidden = 6, kFfn = 7;

// The reference: down(silu(gate x) · up x) with unsharded weights that require gradients.
struct Formula {
  Tensor gate_up = random_tensor({2 * kFfn, kHidden}, 1).requires_grad_();
  Tensor down = random_tensor({kHidden, kFfn}, 2).requires_grad_();
  Tensor x = random_tensor({kSequenceLength, 2, kHidden}, 3).requires_grad_();
  Tensor dy = random_tensor({kSequenceLength, 2, kHidden}, 4);

  Tensor operator()() const {
    const auto both = x.matmul(gate_up.t()).chunk(2, -1);
    return (both[0] * at::sigmoid(both[0]) * both[1]).matmul(down.t());
  }
};

struct Slices {
  ColumnParallelLinear gate_up;
  RowParallelLinear down;

  Slices(const Group& group, const Formula& full)
      : gate_up("gate_up", {kHidden, 2 * kFfn}, gate_up_rule(group), group, at::kDouble),
        down("down", {kFfn, kHidden}, ShardRule::sharded(1, ffn(group)), group, at::kDouble) {
    fill_(gate_up.weight(), full.gate_up, group.rank());
    fill_(down.weight(), full.down, group.rank());
  }
  static Split ffn(const Group& group) { return Split::even("ffn", kFfn, group.size()); }
  static ShardRule gate_up_rule(const Group& group) { return {0, {{ffn(group)}, {ffn(group)}}}; }
  static void fill_(const ParameterPtr& parameter, const Tensor& full, int rank) {
    const at::NoGradGuard no_grad;
    parameter->value.copy_(slice_of(full, parameter->rule, rank));
    parallel::zero_grad_(*parameter);
  }
};

template <ResidualStream Stream>
void check(const Group& group) {
  const Formula full;
  const Tensor expected = full();
  expected.backward(full.dy);
  const Step step(group, kSequenceLength);
  const auto local_rows = [&](const Tensor& x) { return testing::local_rows<Stream>(x, step); };
  const Slices local(group, full);
  const Tensor x = local_rows(full.x).requires_grad_();
  const Tensor y = GatedMlp(local.gate_up, local.down)(Placed<Stream>(x), step).reduced(step).local();
  EXPECT_LE(relative_error(y, local_rows(expected)), 1e-14);
  y.backward(local_rows(full.dy));
  EXPECT_LE(relative_error(x.grad(), local_rows(full.x.grad())), 1e-14);
  for (const auto& [parameter, gradient] :
       {std::pair(local.gate_up.weight(), full.gate_up.grad()), {local.down.weight(), full.down.grad()}}) {
    EXPECT_LE(relative_error(parameter->main_grad, slice_of(gradient, parameter->rule, group.rank())), 1e-14);
  }
}

TEST(GatedMlp, EqualsItsFormulaUnderTpAndSp) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& ranks_group) {
      for (const Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) {
        check<Invariant>(group);
        check<Sharded<kSequence>>(group);
      }
    });
  }
}

// The reference: down(gelu(up x + b)) + c with unsharded weights that require gradients.
struct GeluFormula {
  kernels::Gelu form;
  Tensor up = random_tensor({kFfn, kHidden}, 1).requires_grad_();
  Tensor up_bias = random_tensor({kFfn}, 5).requires_grad_();
  Tensor down = random_tensor({kHidden, kFfn}, 2).requires_grad_();
  Tensor down_bias = random_tensor({kHidden}, 6).requires_grad_();
  Tensor x = random_tensor({kSequenceLength, 2, kHidden}, 3).requires_grad_();
  Tensor dy = random_tensor({kSequenceLength, 2, kHidden}, 4);

  Tensor operator()() const {
    const Tensor z = at::linear(x, up, up_bias);
    return at::linear(at::gelu(z, form == kernels::Gelu::erf ? "none" : "tanh"), down, down_bias);
  }
};

struct GeluSlices {
  ColumnParallelLinear up;
  RowParallelLinear down;

  GeluSlices(const Group& group, const GeluFormula& full)
      : up("up", with_bias(kHidden, kFfn), ShardRule::sharded(0, Slices::ffn(group)), group, at::kDouble),
        down("down", with_bias(kFfn, kHidden), ShardRule::sharded(1, Slices::ffn(group)), group,
             at::kDouble) {
    Slices::fill_(up.weight(), full.up, group.rank());
    Slices::fill_(up.bias(), full.up_bias, group.rank());
    Slices::fill_(down.weight(), full.down, group.rank());
    Slices::fill_(down.bias(), full.down_bias, group.rank());
  }
};

template <ResidualStream Stream>
void check_gelu(const Group& group, kernels::Gelu form) {
  const GeluFormula full{form};
  const Tensor expected = full();
  expected.backward(full.dy);
  const Step step(group, kSequenceLength);
  const auto local_rows = [&](const Tensor& x) { return testing::local_rows<Stream>(x, step); };
  const GeluSlices local(group, full);
  const Tensor x = local_rows(full.x).requires_grad_();
  const Tensor y = Mlp(GeluMlp(local.up, local.down, form))(Placed<Stream>(x), step).reduced(step).local();
  EXPECT_LE(relative_error(y, local_rows(expected)), 1e-14);
  y.backward(local_rows(full.dy));
  EXPECT_LE(relative_error(x.grad(), local_rows(full.x.grad())), 1e-14);
  for (const auto& [parameter, gradient] : {std::pair(local.up.weight(), full.up.grad()),
                                            {local.up.bias(), full.up_bias.grad()},
                                            {local.down.weight(), full.down.grad()}}) {
    EXPECT_LE(relative_error(parameter->main_grad, slice_of(gradient, parameter->rule, group.rank())), 1e-14)
        << parameter->name;
  }
  const Tensor own_term =
      local_rows(full.dy).sum(at::IntArrayRef({0, 1}));  // of the row bias: over this rank's rows
  EXPECT_LE(relative_error(local.down.bias()->main_grad, own_term), 1e-14);
}

TEST(GeluMlp, EqualsItsFormulaUnderTpAndSp) {
  for (const int ranks : {1, 2, 3, 4}) {
    testing::on_ranks(ranks, [](const Group& ranks_group) {
      for (const Group& group : {ranks_group, ranks_group.without_symmetric_heap()}) {
        for (const kernels::Gelu form : {kernels::Gelu::erf, kernels::Gelu::tanh}) {
          check_gelu<Invariant>(group, form);
          check_gelu<Sharded<kSequence>>(group, form);
        }
      }
    });
  }
}

Tensor gelu_of(const Tensor& x, const ParameterPtr& bias) {
  return gelu(Placed<Sharded<kFeature>>(x), bias, kernels::Gelu::erf).local();
}

TEST(BiasGelu, AcceptsNoBiasAndAFrozenBias) {
  const Tensor x = random_tensor({3, 2, 8}, 1).requires_grad_(), dy = random_tensor({3, 2, 8}, 2);
  gelu_of(x, nullptr).backward(dy);
  const auto bias = parallel::make_parameter("bias", {8}, ShardRule::replicated(),
                                             parallel::Init::constant(0), Group(), at::kDouble);
  parallel::initialize_(*bias, kernels::RandomKey::of(1), Group());
  parallel::freeze_(*bias);
  const Tensor same = x.detach().clone().requires_grad_();
  gelu_of(same, bias).backward(dy);
  EXPECT_TRUE(testing::same_bits(same.grad(), x.grad()));
  EXPECT_FALSE(bias->main_grad.defined());
}

// Only the bias is trained, and everything below it is frozen.
TEST(BiasGelu, TrainsABiasIfTheInputNeedsNoGradient) {
  const Tensor x = random_tensor({3, 2, 8}, 1), dy = random_tensor({3, 2, 8}, 2);
  const auto bias = parallel::make_parameter("bias", {8}, ShardRule::replicated(),
                                             parallel::Init::constant(1), Group(), at::kDouble);
  parallel::initialize_(*bias, kernels::RandomKey::of(1), Group());
  parallel::zero_grad_(*bias);
  gelu_of(x, bias).backward(dy);
  const Tensor leaf = at::ones({8}, at::kDouble).requires_grad_();
  at::gelu(x + leaf).backward(dy);
  EXPECT_LE(relative_error(bias->main_grad, leaf.grad()), 1e-14);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(gelu_of(x, bias).requires_grad());
}

TEST(SwiGlu, EqualsItsFormula) {
  const Tensor gate_up = random_tensor({3, 2, 8}, 1).requires_grad_();
  const Tensor y = swiglu(Placed<Sharded<kFeature>>(gate_up)).local();
  const auto halves = gate_up.detach().chunk(2, -1);
  EXPECT_LE(relative_error(y, halves[0] * at::sigmoid(halves[0]) * halves[1]), 1e-15);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(swiglu(Placed<Sharded<kFeature>>(gate_up)).local().requires_grad());
}

}  // namespace
}  // namespace shardwise::nn::mlp_test

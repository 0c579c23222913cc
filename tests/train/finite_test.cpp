#include "shardwise/train/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shardwise/train/trainer.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::train::finite_test {
namespace {

using parallel::Parameter;
using parallel::ParameterPtr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ParameterPtr parameter(const std::string& name, const comm::Group& group) {
  ParameterPtr made = parallel::make_parameter(name, {2, 2}, base::ShardRule::replicated(),
                                               parallel::Init::constant(1), group, at::kFloat);
  parallel::initialize_(*made, kernels::RandomKey::of(1), group);
  parallel::zero_grad_(*made);
  return made;
}

/// Two parameters on two ranks and the error of a step whose loss is NaN.
struct Ranks {
  explicit Ranks(const comm::Group& two_ranks)
      : group(two_ranks), a(parameter("a", two_ranks)), b(parameter("b", two_ranks)) {}

  void put_nan_in(const at::Tensor& x, int rank) const {
    if (group.rank() == rank) x.detach()[1][0] = kNan;
  }
  std::string error() const {
    const parallel::ParamSpecs specs{parallel::ParamSpec::over_tp(a, parallel::GradientKind::partial),
                                     parallel::ParamSpec::over_tp(b, parallel::GradientKind::partial)};
    return test::error_text<c10::Error>(
        [&] { check_finite({.step = 7, .loss = kNan, .grad_norm = 1}, specs, group); });
  }
  void expect_named(const std::string& where) const {
    EXPECT_PRED2(test::contains, error(), "in step 7, first non-finite value " + where + "; resume from");
  }

  comm::Group group;
  ParameterPtr a, b;
};

TEST(Finite, NamesTheFirstTensorWeightsBeforeGradients) {
  testing::on_ranks(2, [](const comm::Group& group) {
    const Ranks ranks(group);
    ranks.expect_named("in the activations");
    ranks.put_nan_in(ranks.b->main_grad, 1);
    ranks.expect_named("in the gradient of b on rank 1");
    ranks.put_nan_in(ranks.a->main_grad, 0);
    ranks.expect_named("in the gradient of a on rank 0");
    ranks.put_nan_in(ranks.b->value, 1);
    ranks.expect_named("in the weights of b on rank 1");
  });
}

TEST(Finite, AcceptsFiniteLossesAndNorms) {
  const Ranks ranks{comm::Group()};
  EXPECT_NO_THROW(check_finite({.step = 7, .loss = 2, .grad_norm = 1}, {}, ranks.group));
}

// After a step that fails, too: the next would add to them.
TEST(Finite, EveryStepLeavesTheGradientsZero) {
  const testing::Scratch scratch;
  const Job job(testing::small_options(scratch));
  Trainer trainer(job, one_replica(comm::Group()));
  const auto largest_gradient = [&] {
    double largest = 0;
    for (const nn::UsedParameter& used : trainer.weights().used_parameters())
      largest = std::max(largest, used.parameter->main_grad.abs().max().item<double>());
    return largest;
  };
  double before_update = 0;
  trainer.step([&] { before_update = largest_gradient(); });
  EXPECT_GT(before_update, 0);
  EXPECT_EQ(largest_gradient(), 0);
  const at::Tensor weight = trainer.weights().used_parameters().front().parameter->value.detach();
  const at::Tensor copy = weight.clone();
  weight.fill_(kNan);
  EXPECT_THROW(trainer.step(), c10::Error);
  EXPECT_EQ(largest_gradient(), 0);
  weight.copy_(copy);
  EXPECT_TRUE(std::isfinite(trainer.step().grad_norm));
}

}  // namespace
}  // namespace shardwise::train::finite_test

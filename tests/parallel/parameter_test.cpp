#include "shardwise/parallel/parameter.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::parallel::parameter_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;
using testing::same_bits;
using testing::slice_of;

const auto kKey = kernels::RandomKey::of(7);

// A parameter's sharding rule, at any number of ranks.
struct Rule {
  const char* name;
  std::vector<int64_t> shape;
  std::function<ShardRule(int ranks)> at;
};

std::vector<Rule> rules() {
  const auto heads = [](int ranks) { return Split::even("heads", 6, ranks); };
  return {{"rows", {7, 5}, [](int ranks) { return ShardRule::sharded(0, Split::even("rows", 7, ranks)); }},
          {"columns",
           {3, 10},
           [](int ranks) { return ShardRule::sharded(1, Split::even("columns", 10, ranks)); }},
          {"empty shards",
           {2, 3},
           [](int ranks) { return ShardRule::sharded(0, Split::even("rows", 2, ranks)); }},
          {"replicated", {9}, [](int) { return ShardRule::replicated(); }},
          {"fused", {24, 5}, [=](int ranks) {
             const Split kv = Split::kv_heads_of(heads(ranks), 3);
             return ShardRule{0, {{heads(ranks), 2}, {kv, 2}, {kv, 2}}};
           }}};
}

Tensor drawn(const Rule& rule, const Init& init, const Group& group, at::ScalarType dtype,
             const std::string& name = "weight") {
  const ParameterPtr parameter = make_parameter(name, rule.shape, rule.at(group.size()), init, group, dtype);
  initialize_(*parameter, kKey, group);
  return parameter->value.detach();
}

TEST(Parameter, InitialValuesAreASliceOfTheFullTensors) {
  const Init inits[] = {Init::normal(0.02), Init::kaiming_uniform(24), Init::constant(1)};
  for (const Rule& rule : rules()) {
    for (const Init& init : inits) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        const Tensor full = drawn(rule, init, Group(), dtype);
        for (const int ranks : {1, 2, 3, 4}) {
          testing::on_ranks(ranks, [&](const Group& group) {
            const Tensor expected = slice_of(full, rule.at(ranks), group.rank());
            EXPECT_TRUE(same_bits(drawn(rule, init, group, dtype), expected)) << rule.name << " on " << ranks;
          });
        }
      }
    }
  }
}

// So that a parameter keeps its values where a model replicates what it sharded.
TEST(Parameter, InitialValuesDoNotDependOnTheRule) {
  const Rule sharded{
      "sharded", {9}, [](int ranks) { return ShardRule::sharded(0, Split::even("rows", 9, ranks)); }};
  const Rule replicated{"replicated", {9}, [](int) { return ShardRule::replicated(); }};
  EXPECT_TRUE(same_bits(drawn(replicated, Init::normal(1), Group(), at::kFloat),
                        drawn(sharded, Init::normal(1), Group(), at::kFloat)));
}

double average(const Tensor& x) {
  return x.mean().item<double>();
}
double deviation(const Tensor& x) {
  return std::sqrt((x - x.mean()).square().mean().item<double>());
}

// The bounds are five standard errors of 40 000 values.
TEST(Parameter, FollowsItsInitDistribution) {
  const Rule large{"large", {200, 200}, [](int) { return ShardRule::replicated(); }};
  const Tensor normal = drawn(large, Init::normal(0.02), Group(), at::kDouble);
  EXPECT_NEAR(average(normal), 0, 5 * 0.02 / 200);
  EXPECT_NEAR(deviation(normal), 0.02, 5 * 0.02 / std::sqrt(2.0) / 200);
  const Tensor uniform = drawn(large, Init::kaiming_uniform(64), Group(), at::kDouble);
  EXPECT_LE(uniform.abs().max().item<double>(), 1.0 / 8);
  EXPECT_NEAR(average(uniform), 0, 5 * 0.125 / std::sqrt(3.0) / 200);
  EXPECT_NEAR(deviation(uniform), 0.125 / std::sqrt(3.0), 5 * 0.125 / std::sqrt(3.0) / 200);
  EXPECT_TRUE(same_bits(drawn(large, Init::constant(3), Group(), at::kDouble),
                        at::full({200, 200}, 3.0, at::kDouble)));
}

double correlation(const Tensor& a, const Tensor& b) {
  return testing::dot(a - a.mean(), b - b.mean()) / (a.numel() * deviation(a) * deviation(b));
}

TEST(Parameter, NamesSegmentsAndSeedsGiveUncorrelatedValues) {
  const Rule large{"large", {100, 100}, [](int) { return ShardRule::replicated(); }};
  const Tensor a = drawn(large, Init::normal(1), Group(), at::kDouble, "a");
  const Tensor b = drawn(large, Init::normal(1), Group(), at::kDouble, "b");
  EXPECT_LE(std::abs(correlation(a, b)), 5 / 100.0);
  const ParameterPtr other_seed =
      make_parameter("a", {100, 100}, ShardRule::replicated(), Init::normal(1), Group(), at::kDouble);
  initialize_(*other_seed, kernels::RandomKey::of(8), Group());
  EXPECT_LE(std::abs(correlation(a, other_seed->value.detach())), 5 / 100.0);
  const Split rows = Split::unsharded("rows", 50);
  const Rule fused{"fused", {100, 100}, [&](int) { return ShardRule{0, {{rows}, {rows}}}; }};
  const Tensor segments = drawn(fused, Init::normal(1), Group(), at::kDouble);
  EXPECT_LE(std::abs(correlation(segments.narrow(0, 0, 50), segments.narrow(0, 50, 50))),
            5 / std::sqrt(5000.0));
}

TEST(Parameter, HasMainGradientsInFp32OrFp64) {
  for (const auto& [dtype, expected] :
       {std::pair(at::kBFloat16, at::kFloat), {at::kFloat, at::kFloat}, {at::kDouble, at::kDouble}}) {
    const ParameterPtr parameter =
        make_parameter("a", {3, 2}, ShardRule::replicated(), Init::constant(0), Group(), dtype);
    EXPECT_FALSE(parameter->main_grad.defined());
    EXPECT_TRUE(parameter->value.requires_grad() && parameter->value.is_leaf());
    zero_grad_(*parameter);
    EXPECT_EQ(parameter->main_grad.scalar_type(), expected);
    const void* memory = parameter->main_grad.data_ptr();
    parameter->main_grad.fill_(1);
    zero_grad_(*parameter);
    EXPECT_EQ(parameter->main_grad.abs().sum().item<double>(), 0);
    EXPECT_EQ(parameter->main_grad.data_ptr(), memory) << "allocated again";
  }
}

TEST(Parameter, GlobalNumelCountsTheFullTensor) {
  const Split rows = Split::even("rows", 7, 1);
  const ParameterPtr parameter =
      make_parameter("a", {7, 3}, ShardRule::sharded(0, rows), Init::constant(0), Group(), at::kFloat);
  EXPECT_EQ(parameter->global_numel(), 21);
}

TEST(ParamSpec, RejectsUnknownMeshAxes) {
  const ParamSpec spec = ParamSpec::over_tp(
      make_parameter("a", {2}, ShardRule::replicated(), Init::constant(0), Group(), at::kFloat),
      GradientKind::partial);
  EXPECT_EQ(spec.gradient_over("tp"), GradientKind::partial);
  EXPECT_EQ(test::error_text([&] { spec.gradient_over("dp"); }),
            "a: has no gradient placement over mesh axis dp");
}

}  // namespace
}  // namespace shardwise::parallel::parameter_test

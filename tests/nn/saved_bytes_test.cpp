// The bytes that each layer saves for backward are those that its header documents. plan/saved_bytes_test
// covers full models.
#include <gtest/gtest.h>

#include <functional>

#include "shardwise/base/memory_counter.h"
#include "shardwise/nn/mlp.h"
#include "shardwise/nn/norm.h"
#include "shardwise/nn/positions.h"
#include "tests/support/layers.h"

namespace shardwise::nn::saved_bytes_test {
namespace {

using at::Tensor;
using base::ShardRule;
using base::Split;
using comm::Group;

constexpr int64_t s = 5, b = 3, h = 7, f = 11;

class SavedByLayer : public ::testing::TestWithParam<at::ScalarType> {
 public:
  static void SetUpTestSuite() { base::install_memory_counter(); }

  int64_t e() const { return static_cast<int64_t>(c10::elementSize(GetParam())); }
  int64_t e4() const { return GetParam() == at::kDouble ? 8 : 4; }
  Step step() const { return Step(Group(), s); }
};

/// Returns the bytes that the graph of `layer` saves besides its output. Only the graph references the input.
int64_t saved(const std::function<Tensor(const Tensor&)>& layer, int64_t width, at::ScalarType dtype,
              bool needs_dx = true) {
  const Tensor leaf = testing::random_tensor({s, b, width}, 1, dtype).requires_grad_(needs_dx);
  Tensor y = layer(leaf.clone());
  const int64_t before = base::live_bytes(), local = static_cast<int64_t>(y.nbytes());
  y.reset();
  return before - base::live_bytes() - local;
}

template <class Layer>
Layer ready(Layer layer) {
  UsedParameters parameters;
  layer.append_parameters(parameters);
  for (const UsedParameter& used : parameters) {
    parallel::initialize_(*used.parameter, kernels::RandomKey::of(1), Group());
    parallel::zero_grad_(*used.parameter);
  }
  return layer;
}

/// Returns the value; with gradients no reduction is pending.
Tensor local(const Placed<Invariant>& x) {
  return x.local();
}
Tensor local(const DeferredReduction<Invariant>& y) {
  return y.value->local();
}

template <class Layer>
int64_t saved_on_stream(const Layer& layer, at::ScalarType dtype) {
  return saved([&](const Tensor& x) { return local(layer(Placed<Invariant>(x), Step(Group(), s))); }, h,
               dtype);
}

TEST_P(SavedByLayer, NormsSaveTheirInputAndItsStatistics) {
  EXPECT_EQ(saved_on_stream(ready(RMSNorm("n", h, 1e-5, Group(), GetParam())), GetParam()),
            s * b * h * e() + s * b * e4());
  EXPECT_EQ(saved_on_stream(ready(LayerNorm("n", h, 1e-5, Group(), GetParam())), GetParam()),
            s * b * h * e() + 2 * s * b * e4());
}

TEST_P(SavedByLayer, LearnedPositionsSaveNothing) {
  const LearnedPositions positions("p", s, h, parallel::Init::normal(1), Group(), GetParam());
  EXPECT_EQ(saved_on_stream(ready(positions), GetParam()), 0);
}

TEST_P(SavedByLayer, ActivationsSaveTheirInput) {
  const auto features = [](const Tensor& x) { return Placed<Sharded<kFeature>>(x); };
  EXPECT_EQ(saved([&](const Tensor& x) { return swiglu(features(x)).local(); }, 2 * f, GetParam()),
            s * b * 2 * f * e());
  EXPECT_EQ(saved([&](const Tensor& x) { return gelu(features(x), nullptr, kernels::Gelu::erf).local(); }, f,
                  GetParam()),
            s * b * f * e());
}

struct Linears {
  ColumnParallelLinear up;
  RowParallelLinear down;

  explicit Linears(at::ScalarType dtype)
      : up(ready(ColumnParallelLinear("up", testing::with_bias(h, f),
                                      ShardRule::sharded(0, Split::unsharded("ffn", f)), Group(), dtype))),
        down(ready(RowParallelLinear("down", testing::with_bias(f, h),
                                     ShardRule::sharded(1, Split::unsharded("ffn", f)), Group(), dtype))) {}
};

// The inputs of both products and of the activation.
TEST_P(SavedByLayer, GeluMlpSavesThreeTensors) {
  const Linears linears(GetParam());
  const GeluMlp mlp(linears.up, linears.down, kernels::Gelu::tanh);
  EXPECT_EQ(saved_on_stream(mlp, GetParam()), s * b * (h + 2 * f) * e());
}

TEST_P(SavedByLayer, FrozenWeightsSaveNoInput) {
  const Linears linears(GetParam());
  const GeluMlp mlp(linears.up, linears.down, kernels::Gelu::tanh);
  parallel::freeze_(*linears.up.weight());
  EXPECT_EQ(saved_on_stream(mlp, GetParam()), s * b * 2 * f * e());
  parallel::freeze_(*linears.down.weight());
  EXPECT_EQ(saved_on_stream(mlp, GetParam()), s * b * f * e());
  parallel::freeze_(*linears.up.bias());
  parallel::freeze_(*linears.down.bias());
  EXPECT_EQ(saved_on_stream(mlp, GetParam()), s * b * f * e())
      << "the input's gradient still passes the gelu";
}

// GeLU saves its input for its bias gradient.
TEST_P(SavedByLayer, SelectiveRecomputationWorksIfOnlyABiasIsTrained) {
  const Linears linears(GetParam());
  const GeluMlp mlp(linears.up, linears.down, kernels::Gelu::tanh);
  parallel::freeze_(*linears.up.weight());
  Step selective = step();
  selective.recompute = base::Recompute::selective;
  const auto run = [&](const Tensor& x) { return local(mlp(Placed<Invariant>(x), selective)); };
  EXPECT_EQ(saved(run, h, GetParam(), /*needs_dx=*/false), s * b * f * e());
  parallel::freeze_(*linears.up.bias());
  EXPECT_EQ(saved(run, h, GetParam(), /*needs_dx=*/false), s * b * f * e()) << "down's input itself";
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SavedByLayer, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace shardwise::nn::saved_bytes_test

// Frozen parameters of a full model have no gradient or optimizer state, and do not change the gradients of
// other parameters.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>

#include "shardwise/train/optimizer.h"
#include "tests/support/problem.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::frozen_test {
namespace {

using at::Tensor;
using comm::Group;
using IsFrozen = std::function<bool(const std::string& name)>;

constexpr int64_t kSequence = 5;

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

struct Subset {
  const char* what;
  IsFrozen is_frozen;
};

const std::vector<Subset>& subsets() {
  static const std::vector<Subset> all = {
      {"embedding, possibly a tied lm_head", [](const std::string& n) { return has(n, "embed_tokens"); }},
      {"lm_head", [](const std::string& n) { return has(n, "lm_head"); }},
      {"norms", [](const std::string& n) { return has(n, "norm"); }},
      {"all but norms and biases", [](const std::string& n) { return !has(n, "norm") && !has(n, "bias"); }},
      {"biases", [](const std::string& n) { return has(n, "bias"); }},
      {"attention", [](const std::string& n) { return has(n, "self_attn"); }},
      {"the lower layer and the embedding",
       [](const std::string& n) { return has(n, "layers.0.") || has(n, "embed_tokens"); }},
      {"the upper layer", [](const std::string& n) { return has(n, "layers.1."); }},
      {"all but one norm in the middle",
       [](const std::string& n) { return !has(n, "layers.1.input_layernorm"); }},
      {"all but one down projection",
       [](const std::string& n) { return !has(n, "layers.0.mlp.down_proj.weight"); }},
      {"all but the last norm", [](const std::string& n) { return !has(n, "model.norm"); }},
  };
  return all;
}

config::Config config_of(bool is_tied) {
  config::Config config = small_config();
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  config.tie_word_embeddings = is_tied;
  return config;
}

/// A model after one forward and backward, with synchronized gradients.
struct Trained {
  model::DecoderWeights weights;
  parallel::ParamSpecs specs;
  double loss, norm;

  Trained(const Group& group, const config::Config& config, const RunConfig& run, const IsFrozen& is_frozen,
          base::Recompute recompute = base::Recompute::none)
      : weights(config, group, at::kDouble), specs(specs_of(weights, run.stream)) {
    load_slices_(weights, random_weights(config, 1, at::kDouble));
    for (const nn::UsedParameter& used : weights.used_parameters()) {
      if (is_frozen(used.parameter->name)) parallel::freeze_(*used.parameter);
    }
    zero_gradients_(weights);
    const Batch batch = random_batch(config, kSequence, kBatch, 2);
    nn::Step step = make_step(group, run.path, kSequence, kernels::RandomKey::of(3), /*dropout=*/0.1);
    step.recompute = recompute;
    const Tensor value = run.stream == Stream::tp ? loss_of<nn::Invariant>(batch, step)
                                                  : loss_of<nn::Sharded<nn::kSequence>>(batch, step);
    value.backward();
    parallel::sync_gradients_(specs, group);
    loss = value.item<double>();
    norm = parallel::gradient_norm(specs, parallel::NormOrder::two, group);
  }

 private:
  template <nn::ResidualStream S>
  Tensor loss_of(const Batch& batch, const nn::Step& step) const {
    return model::Decoder<S>(weights).loss(batch.ids, batch.labels, batch.valid_tokens, step).local();
  }
};

bool none(const std::string&) {
  return false;
}

void for_each_case(const std::function<void(const Group&, const config::Config&, const RunConfig&)>& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](const Group& group) {
      for (const bool is_tied : {false, true}) {
        for (const RunConfig& run : run_configs()) check(group, config_of(is_tied), run);
      }
    });
  }
}

void expect_other_gradients(const Trained& some, const Trained& all, const IsFrozen& is_frozen) {
  EXPECT_EQ(some.loss, all.loss);
  for (size_t i = 0; i < some.specs.size(); ++i) {
    const parallel::Parameter &got = *some.specs[i].parameter, &expected = *all.specs[i].parameter;
    if (is_frozen(got.name)) {
      EXPECT_FALSE(got.main_grad.defined()) << got.name;
    } else {
      EXPECT_TRUE(same_bits(got.main_grad, expected.main_grad)) << got.name;
    }
  }
}

TEST(FrozenParameters, LeavesOtherGradientsUnchanged) {
  std::atomic<size_t> compared{0};  // groups of different sizes run in different threads
  for_each_case([&](const Group& group, const config::Config& config, const RunConfig& run) {
    const Trained all(group, config, run, none);
    for (const auto& [what, is_frozen] : subsets()) {
      SCOPED_TRACE(what);
      for (const auto mode : {base::Recompute::none, base::Recompute::selective, base::Recompute::full}) {
        expect_other_gradients(Trained(group, config, run, is_frozen, mode), all, is_frozen);
        if (group.rank() == 0) ++compared;
      }
    }
  });
  std::printf("covered: %zu combinations in which frozen parameters change no other gradient\n",
              compared.load());
}

// Compares with the sum on one rank, which holds all parameters; fp64 sums of at most a few thousand terms.
TEST(FrozenParameters, IsExcludedFromTheGradientNorm) {
  for_each_case([](const Group& group, const config::Config& config, const RunConfig& run) {
    for (const auto& [what, is_frozen] : subsets()) {
      const Trained alone(Group(), config, {run.stream, Path::symmetric}, is_frozen);
      double squares = 0;
      for (const parallel::ParamSpec& spec : alone.specs) {
        if (spec.parameter->is_frozen()) continue;
        squares += spec.parameter->main_grad.square().sum().item<double>();
      }
      EXPECT_NEAR(Trained(group, config, run, is_frozen).norm, std::sqrt(squares), 1e-12 * std::sqrt(squares))
          << what;
    }
  });
}

TEST(FrozenParameters, HasNoOptimizerStateAndKeepsItsValue) {
  on_ranks(2, [](const Group& group) {
    for (const auto& [what, is_frozen] : subsets()) {
      SCOPED_TRACE(what);
      const Trained trained(group, config_of(/*is_tied=*/false), {Stream::tp_sp, Path::symmetric}, is_frozen);
      std::vector<Tensor> before;
      for (const nn::UsedParameter& used : trained.weights.used_parameters())
        before.push_back(used.parameter->value.detach().clone());
      train::AdamW optimizer(trained.weights.used_parameters(), {});
      for (const train::ParameterState& state : optimizer.state()) EXPECT_FALSE(state.parameter->is_frozen());
      optimizer.step_(/*step=*/1, /*learning_rate=*/0.1);
      for (size_t i = 0; i < before.size(); ++i) {
        const parallel::Parameter& parameter = *trained.weights.used_parameters()[i].parameter;
        if (before[i].numel() == 0) continue;
        EXPECT_EQ(same_bits(parameter.value, before[i]), parameter.is_frozen()) << parameter.name;
      }
    }
  });
}

}  // namespace
}  // namespace shardwise::testing::frozen_test

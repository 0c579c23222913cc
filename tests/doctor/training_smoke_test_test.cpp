// The training smoke test on every preset; errors of the optimizer are named. tests/mutation/run runs it with
// deliberate faults.
#include "shardwise/doctor/training_smoke_test.h"

#include <gtest/gtest.h>

#include "shardwise/doctor/adamw_formula.h"
#include "shardwise/doctor/small_model.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/temporary.h"

namespace shardwise::doctor::training_smoke_test_test {
namespace {

using Names = std::vector<std::string>;

std::vector<Check> smoke_test_on(int ranks, const config::Config& config, at::ScalarType dtype) {
  const test::TemporaryDirectory directory;
  std::vector<Check> checks;
  testing::on_ranks(ranks, [&](const comm::Group& group) {
    std::vector<Check> local = run_training_smoke_test({config, dtype, directory.path(), /*seed=*/9}, group);
    if (group.rank() == 0) checks = std::move(local);
  });
  return checks;
}

TEST(TrainingSmokeTest, PassesForEveryPreset) {
  int number = 0;
  for (const std::string& name : config::preset_names()) {
    const at::ScalarType dtype = ++number % 2 == 0 ? at::kFloat : at::kBFloat16;
    Names titles;
    for (const Check& check : smoke_test_on(2 + number % 2, config::preset(name), dtype)) {
      EXPECT_TRUE(check.passed) << name << ": " << check.title() << ": " << check.detail;
      titles.push_back(check.name);
    }
    EXPECT_EQ(titles, (Names{"training text", "optimizer", "training text", "optimizer", "checkpoint",
                             "formula", "generation", "generation", "generation", "generation", "panel files",
                             "generation", "generation"}));
  }
}

TEST(SmallModel, HasTheSameArchitecture) {
  for (const std::string& name : config::preset_names()) {
    const config::Config config = config::preset(name), small = shrink(config);
    EXPECT_NO_THROW(config::to_json(small)) << name;
    EXPECT_LT(config::parameter_count(small), 1'000'000) << name;
    EXPECT_EQ(small.num_attention_heads, config.num_attention_heads) << name;
    EXPECT_EQ(small.num_key_value_heads, config.num_key_value_heads) << name;
    EXPECT_EQ(small.sliding_window.has_value(), config.sliding_window.has_value()) << name;
    EXPECT_LT(small.sliding_window.value_or(0), kSmallSeqLen) << name;
  }
}

TEST(SmallModel, HasALayerOfEachKind) {
  config::Config config = config::preset("qwen2.5-0.5b");
  config.sliding_window = 4096;
  config.sliding_layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
  config.sliding_layers.front() = false;
  const config::Config small = shrink(config);
  EXPECT_EQ(small.num_hidden_layers, 2);
  EXPECT_EQ(small.sliding_layers, (std::vector<bool>{false, true}));
}

TEST(SmallModel, RotatesAnEvenPartOfEachHead) {
  config::Config config = config::preset("phi-3-mini");
  config.partial_rotary_factor = 0.4;
  EXPECT_EQ(shrink(config).head_dim, 10);
  EXPECT_EQ(shrink(config).rotary_dim(), 4);
  config.head_dim = 6;  // smaller than any candidate
  EXPECT_EQ(shrink(config).head_dim, 6);
}

/// Runs the trainer on one rank, applies `change` after its second step, and returns the error of that step.
std::string error_after(at::ScalarType dtype, const std::function<void(const train::Trainer&)>& change) {
  const test::TemporaryDirectory directory;
  const TrainingSmokeTest smoke_test{testing::small_config(), dtype, directory.path(), /*seed=*/9};
  write_inputs(smoke_test);
  const train::Job job(smoke_test_options(smoke_test, plan::Parallelism::tp, /*tp=*/1));
  train::Trainer trainer(job, train::one_replica(comm::Group()));
  AdamWFormula formula(trainer, job.options());
  const auto copy_gradients = [&] { formula.copy_gradients(); };
  EXPECT_EQ(formula.error_after_step(trainer.step(copy_gradients).grad_norm), "");
  const double norm = trainer.step(copy_gradients).grad_norm;
  change(trainer);
  return formula.error_after_step(norm);
}

TEST(AdamWFormula, NamesAWrongWeight) {
  const std::string error = error_after(at::kFloat, [](const train::Trainer& trainer) {
    trainer.optimizer().state().back().parameter->value.detach().view(-1)[3] += 1e-4;
  });
  EXPECT_TRUE(error.starts_with("lm_head.weight differs from AdamW's formula by 1.00e-04 after step 2"))
      << error;
  EXPECT_EQ(error_after(at::kFloat, [](const train::Trainer&) {}), "");
}

TEST(AdamWFormula, NamesAWeightThatDiffersFromItsMaster) {
  const std::string error = error_after(at::kBFloat16, [](const train::Trainer& trainer) {
    trainer.optimizer().state().back().parameter->value.detach().view(-1)[3] += 1;
  });
  EXPECT_EQ(error, "lm_head.weight is not its rounded fp32 master after step 2");
}

}  // namespace
}  // namespace shardwise::doctor::training_smoke_test_test

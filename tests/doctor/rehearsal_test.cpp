// Rehearsals of every family, and that a fault made by hand is named. What switched-on faults make of them is
// tests/mutation/run's.
#include "shardwise/doctor/rehearsal.h"

#include <gtest/gtest.h>

#include "shardwise/doctor/adamw_formula.h"
#include "shardwise/doctor/small_model.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"
#include "tests/support/temporary.h"

namespace shardwise::doctor::rehearsal_test {
namespace {

using Names = std::vector<std::string>;

std::vector<Audit> rehearse_on(int ranks, const model::Config& config, at::ScalarType dtype) {
  const test::TemporaryDirectory directory;
  std::vector<Audit> audits;
  testing::on_ranks(ranks, [&](const comm::Group& group) {
    std::vector<Audit> own = rehearse({config, dtype, directory.path(), /*seed=*/9}, group);
    if (group.rank() == 0) audits = std::move(own);
  });
  return audits;
}

TEST(Rehearsal, HoldsForEveryPreset) {
  int number = 0;
  for (const std::string& name : model::preset_names()) {
    const at::ScalarType dtype = ++number % 2 == 0 ? at::kFloat : at::kBFloat16;
    Names titles;
    for (const Audit& audit : rehearse_on(2 + number % 2, model::preset(name), dtype)) {
      EXPECT_TRUE(audit.holds) << name << ": " << audit.title() << ": " << audit.detail;
      titles.push_back(audit.name);
    }
    EXPECT_EQ(titles,
              (Names{"training text", "optimizer", "training text", "optimizer", "checkpoint", "formula"}));
  }
}

TEST(SmallModel, IsOneOfTheSameKind) {
  for (const std::string& name : model::preset_names()) {
    const model::Config config = model::preset(name), small = in_small(config);
    EXPECT_NO_THROW(model::to_json(small)) << name;
    EXPECT_LT(model::parameter_count(small), 1'000'000) << name;
    EXPECT_EQ(small.num_attention_heads, config.num_attention_heads) << name;
    EXPECT_EQ(small.num_key_value_heads, config.num_key_value_heads) << name;
    EXPECT_EQ(small.sliding_window.has_value(), config.sliding_window.has_value()) << name;
    EXPECT_LT(small.sliding_window.value_or(0), kSmallLength) << name;
  }
}

TEST(SmallModel, TurnsAnEvenPartOfEachHead) {
  model::Config config = model::preset("phi-3-mini");
  config.partial_rotary_factor = 0.4;
  EXPECT_EQ(in_small(config).head_dim, 10);
  EXPECT_EQ(in_small(config).rotary_dim(), 4);
  config.head_dim = 6;  // less than any that is tried
  EXPECT_EQ(in_small(config).head_dim, 6);
}

/// Runs the trainer on one rank; `change` is made behind its second step.
std::string found_after(at::ScalarType dtype, const std::function<void(const train::Trainer&)>& change) {
  const test::TemporaryDirectory directory;
  const Rehearsal rehearsal{testing::small_config(), dtype, directory.path(), /*seed=*/9};
  put_input(rehearsal);
  const train::Job job(options_of(rehearsal, plan::Stream::tp, /*tp=*/1));
  train::Trainer trainer(job, comm::Group());
  AdamWFormula formula(trainer, job.options());
  trainer.step();
  EXPECT_EQ(formula.wrong_after_step(), "");
  trainer.step();
  change(trainer);
  return formula.wrong_after_step();
}

TEST(AdamWFormula, NamesAWeightThatIsAnother) {
  const std::string found = found_after(at::kFloat, [](const train::Trainer& trainer) {
    trainer.optimizer().state().back().parameter->value.detach().view(-1)[3] += 1e-4;
  });
  EXPECT_TRUE(found.starts_with("lm_head.weight is off AdamW's formula by 1.00e-04 after step 2")) << found;
  EXPECT_EQ(found_after(at::kFloat, [](const train::Trainer&) {}), "");
}

TEST(AdamWFormula, NamesAWeightThatIsNotItsMaster) {
  const std::string found = found_after(at::kBFloat16, [](const train::Trainer& trainer) {
    trainer.optimizer().state().back().parameter->value.detach().view(-1)[3] += 1;
  });
  EXPECT_EQ(found, "lm_head.weight is not its fp32 master, rounded, after step 2");
}

}  // namespace
}  // namespace shardwise::doctor::rehearsal_test

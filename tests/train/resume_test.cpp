// A run that is given --resume and its text alone goes on as the saved run would have.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/train/trainer.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::testing::resume_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains, test::error_text;
using train::Job, train::TrainOptions;

/// A run of six steps that is stopped after three. No setting of the run is a default.
class Resume : public ::testing::Test {
 protected:
  Resume() {
    all_.seed = 7;
    all_.val_fraction = 0.2;
    all_.dropout = 0.1;
    all_.attention_dropout = 0.2;
    all_.label_smoothing = 0.05;
    all_.z_loss = 1e-3;
    all_.freeze = {"model.layers.0.mlp.*", "model.norm.weight"};
    all_.min_lr = 5e-3;
    all_.weight_decay = 0.3;
    all_.beta1 = 0.8;
    all_.beta2 = 0.9;
    all_.eps = 1e-3;
    all_.clip_grad = 0.5;
    given_.text = all_.text;
    given_.resume = scratch_ / "saved";
  }

  void save() const {
    TrainOptions first = all_;
    first.save = scratch_ / "saved";
    first.stop_after = 3;
    run_job(first);
  }
  void put_settings(const json& settings) const {
    scratch_.put("saved/step-3/training.json", settings.dump());
  }
  json settings() const { return json::parse(test::contents(scratch_ / "saved/step-3/training.json")); }
  /// Returns the learning rates of the resumed run.
  std::vector<double> rates() const {
    std::vector<double> rates;
    for (const auto& record : run_job(given_).records) rates.push_back(record.lr);
    return rates;
  }
  std::string changes() const { return Job(given_).resumption().changes; }

  const Scratch scratch_;
  TrainOptions all_ = small_options(scratch_), given_;
};

TEST_F(Resume, TakesOverEverySettingOfTheSavedRun) {
  const std::vector<double> full_run = run_job(all_).losses();
  save();
  const std::vector<double> rest(full_run.begin() + 3, full_run.end());
  EXPECT_EQ(run_job(given_).losses(), rest);
  EXPECT_EQ(changes(), "");
  EXPECT_FALSE(Job(given_).resumption().lacks_settings);
  given_.tp = 2;
  expect_close(run_job(given_).losses(), rest);
}

// Each setting matters to the losses, so that the test above notices a setting that is not taken over.
TEST_F(Resume, EverySettingIsInTheFile) {
  save();
  std::set<std::string> names;
  const json all = settings();
  for (const auto& [name, value] : all.items()) names.insert(name);
  EXPECT_EQ(names,
            (std::set<std::string>{"attention_dropout", "batch_size", "beta1", "beta2", "clip_grad",
                                   "dropout", "eps", "freeze", "grad_accum", "label_smoothing", "lr",
                                   "min_lr", "steps", "val_fraction", "warmup", "weight_decay", "z_loss"}));
}

TEST_F(Resume, AcceptsEqualSettingsAndRefusesOthersByName) {
  save();
  TrainOptions equal = all_;
  equal.resume = given_.resume;
  EXPECT_EQ(Job(equal).resumption().changes, "");
  const auto refusal = [&](auto&& change) {
    TrainOptions other = given_;
    change(other);
    return error_text([&] { Job job(other); });
  };
  const std::string hint = "; leave it out, or load only the weights with --init";
  EXPECT_EQ(refusal([](TrainOptions& o) { o.seed = 0; }),  // the default, but given
            "train: --seed must be the resumed checkpoint's, 7; got 0" + hint);
  EXPECT_EQ(refusal([](TrainOptions& o) { o.seq_len = 12; }),
            "train: --seq-len must be the resumed checkpoint's, 11; got 12" + hint);
  EXPECT_EQ(refusal([](TrainOptions& o) { o.weight_decay = 0.1; }),
            "train: --weight-decay must be the resumed checkpoint's, 0.3; got 0.1" + hint);
  EXPECT_PRED2(contains, refusal([](TrainOptions& o) { o.beta1 = 0.9; }), "--beta1 must be");
  EXPECT_PRED2(contains, refusal([](TrainOptions& o) { o.beta2 = 0.95; }), "--beta2 must be");
  EXPECT_PRED2(contains, refusal([](TrainOptions& o) { o.eps = 1e-8; }), "--eps must be");
  EXPECT_PRED2(contains, refusal([](TrainOptions& o) { o.clip_grad = 1; }), "--clip-grad must be");
}

TEST_F(Resume, ReportsAChangedSchedule) {
  save();
  given_.steps = 8;
  given_.lr = 0.02;
  given_.dropout = 0.0;
  EXPECT_EQ(changes(), "--dropout from 0.1 to 0.0, --steps from 6 to 8, --lr from 0.01 to 0.02");
  const train::Schedule expected{.peak = 0.02, .last = 5e-3, .warmup = 2, .horizon = 8};
  std::vector<double> rates_expected;
  for (int64_t step = 4; step <= 8; ++step) rates_expected.push_back(expected.learning_rate(step));
  EXPECT_EQ(rates(), rates_expected);
}

// The default warm-up is a tenth of the steps: it would begin again in a run that is made longer.
TEST_F(Resume, KeepsTheWarmUpAndLetsTheLastRateFollowTheFirst) {
  all_.warmup.reset();
  all_.min_lr.reset();
  save();
  given_.steps = 1000;
  given_.stop_after = 4;
  given_.lr = 0.1;
  const train::Schedule expected{.peak = 0.1, .last = 0.01, .warmup = 0, .horizon = 1000};
  EXPECT_EQ(rates(), std::vector<double>{expected.learning_rate(4)});
}

TEST_F(Resume, OfAnOlderCheckpointTakesOverSeedAndLength) {
  save();
  fs::remove(scratch_ / "saved/step-3/training.json");
  given_.freeze = all_.freeze;
  const Job job(given_);
  EXPECT_TRUE(job.resumption().lacks_settings);
  EXPECT_EQ(job.options().seed, 7u);
  EXPECT_EQ(job.options().seq_len, 11);
  EXPECT_EQ(job.options().batch_size, TrainOptions().batch_size);
}

TEST_F(Resume, RefusesADamagedFileByName) {
  save();
  const json sound = settings();
  const auto refusal = [&](const json& patch) {
    json changed = sound;
    changed.merge_patch(patch);
    put_settings(changed);
    const std::string text = error_text([&] { Job job(given_); });
    EXPECT_PRED2(contains, text, "training.json: ");
    return text;
  };
  EXPECT_PRED2(contains, refusal({{"steps", "many"}}), "steps must be an integer; got \"many\"");
  EXPECT_PRED2(contains, refusal({{"lr", nullptr}}), "lr must be given; got none");
  EXPECT_PRED2(contains, refusal({{"freeze", {1}}}), "freeze must be a list of strings; got [1]");
  EXPECT_PRED2(contains, refusal({{"min_lr", true}}), "min_lr must be a number");
}

TEST_F(Resume, DetectsAChangedFileWhileRanksStart) {
  save();
  const Job job(given_);
  EXPECT_EQ(job.fingerprint_now(), job.fingerprint());
  json changed = settings();
  changed["lr"] = 0.125;
  put_settings(changed);
  EXPECT_NE(job.fingerprint_now(), job.fingerprint());
}

}  // namespace
}  // namespace shardwise::testing::resume_test

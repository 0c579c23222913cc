// Planned times beside measured ones: the same as those of `shardwise plan` for the saved machine, and none
// without one. Measured times are not compared with anything.
#include "shardwise/cli/planned_step.h"

#include <fstream>

#include "tests/cli/saved_machines.h"

namespace shardwise::cli::planned_time_test {
namespace {

constexpr const char* kStepFields[] = {"planned_step_seconds", "planned_run_seconds",
                                       "planned_compute_seconds", "planned_communication_seconds",
                                       "planned_machine"};
constexpr const char* kGenerationFields[] = {"planned_prompt_seconds", "planned_token_seconds",
                                             "planned_seconds", "planned_machine"};

class PlannedTime : public SavedMachines {
 protected:
  Words train(const Words& more, const std::string& steps = "4") const {
    Words words = training({"train", "--model-config", scratch_ / "config.json", "--json"}, steps);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words generate(const Words& more) const {
    Words words{"generate", "--model", model_, "--json", "--ignore-eos"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Returns the plans of `words` on the machine.
  json planned(const plan::Machine& machine, Words words) const {
    const std::string file = cache_.put("machine.json", plan::machine_text(machine));
    const Words more{"--model", scratch_ / "config.json", "--machine", file, "--dtype", "float32", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = call(words);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return json::parse(outcome.output)["plans"];
  }
};

TEST_F(PlannedTime, OfATrainingRunIsThatOfThePlanner) {
  const plan::Machine machine = save(2, /*seconds_per_call=*/1e-5);
  const std::string report = scratch_ / "report.json";
  const Outcome outcome = run(train({"--tp", "2", "--grad-accum", "3", "--no-sequence-parallel",
                                     "--recompute", "full", "--report", report}));
  const json summary = json::parse(outcome.output), figures = json::parse(test::contents(report))["run"];
  const json plans = planned(machine, {"plan", "--ranks", "2", "--tp", "2", "--batch-size", "6", "--seq-len",
                                       "11", "--micro-batch-size", "2", "--recompute", "full"});
  ASSERT_EQ(plans.size(), 2u);  // with and without sequence parallelism
  const json plan = plans[plans[0]["degrees"]["sequence_parallel"].get<bool>() ? 1 : 0];
  EXPECT_DOUBLE_EQ(summary["planned_step_seconds"], plan["seconds"]["total"]);
  EXPECT_DOUBLE_EQ(summary["planned_communication_seconds"], plan["seconds"]["tensor_parallel"]);
  EXPECT_DOUBLE_EQ(summary["planned_compute_seconds"].get<double>() +
                       summary["planned_communication_seconds"].get<double>(),
                   summary["planned_step_seconds"]);
  EXPECT_DOUBLE_EQ(summary["planned_run_seconds"], 4 * summary["planned_step_seconds"].get<double>());
  EXPECT_EQ(summary["planned_machine"], "synthetic");
  EXPECT_GT(summary["measured_step_seconds"], 0);
  for (const char* field : kStepFields) EXPECT_EQ(figures[field], summary[field]) << field;
  EXPECT_EQ(figures["measured_step_seconds"], summary["measured_step_seconds"]);
  EXPECT_EQ(figures["recompute"], "full");
  for (const char* part : {"; planned time: ", " for 4 steps\n", "\nstep: ", " measured, ", "all steps: "})
    EXPECT_PRED2(contains, outcome.errors, part);
}

/// By the definitions of the axes, from the planner's time of one rank, where sums of kilobytes take no time.
TEST_F(PlannedTime, OfReplicasAndStagesFollowsFromTheTimeOfOneRank) {
  const plan::Machine machine = save(2);
  const auto planned_step = [&](const Words& more) {
    return json::parse(run(train(more)).output)["planned_step_seconds"].get<double>();
  };
  const auto of_one_rank = [&](const std::string& batch) {
    return planned(machine, {"plan", "--ranks", "1", "--batch-size", batch, "--micro-batch-size", "2",
                             "--seq-len", "11", "--recompute", "none"})[0]["seconds"];
  };
  const double passes_of_two = of_one_rank("4")["compute"], all_of_two = of_one_rank("4")["total"],
               passes_of_one = passes_of_two / 2;
  // Two replicas with three micro-batches: one has two of them.
  const double replicas = planned_step({"--dp", "2", "--grad-accum", "3", "--zero", "0"});
  EXPECT_GT(replicas, passes_of_two);
  EXPECT_LT(replicas, 1.05 * all_of_two);
  // Stages with two micro-batches: the slowest has at least half of the work of three.
  const double stages = planned_step({"--pp", "2", "--grad-accum", "2"});
  EXPECT_GT(stages, 1.5 * passes_of_one);
  EXPECT_LT(stages, 3 * passes_of_one);
  // More micro-batches add passes only.
  const double of_four = planned_step({"--pp", "2", "--grad-accum", "4"}),
               of_six = planned_step({"--pp", "2", "--grad-accum", "6"});
  EXPECT_NEAR(of_six - of_four, of_four - stages, 1e-9 * stages);
  EXPECT_TRUE(
      json::parse(run(train({"--pp", "2", "--pp-layers", "1,1"})).output)["planned_step_seconds"].is_null());
}

TEST_F(PlannedTime, IsNullWithoutAMachineOfAsManyRanks) {
  save(3);
  const Outcome outcome = run(train({"--tp", "2"}));
  const json summary = json::parse(outcome.output);
  for (const char* field : kStepFields) EXPECT_TRUE(summary.at(field).is_null()) << field;
  EXPECT_GT(summary["measured_step_seconds"], 0);
  const Outcome generated = run(generate({"--prompt", "line", "--tp", "2"}));
  for (const char* field : kGenerationFields) {
    EXPECT_TRUE(json::parse(generated.output).at(field).is_null()) << field;
  }
  // Short runs are quiet about it.
  for (const Outcome& one : {outcome, generated})
    EXPECT_FALSE(contains(one.errors, "planned time") || contains(one.errors, "bench machine")) << one.errors;
}

TEST_F(PlannedTime, OfAFrozenModelIsThatOfThePlanner) {
  const plan::Machine machine = save(1);
  const Words freeze{"--freeze", "model.embed_tokens.*", "model.layers.0.*"};
  const json summary = json::parse(run(train(freeze)).output);
  Words words{"plan", "--ranks", "1", "--batch-size", "2", "--seq-len", "11", "--recompute", "none"};
  const double whole = planned(machine, words)[0]["seconds"]["total"];
  words.insert(words.end(), freeze.begin(), freeze.end());
  EXPECT_DOUBLE_EQ(summary["planned_step_seconds"], planned(machine, words)[0]["seconds"]["total"]);
  EXPECT_LT(summary["planned_step_seconds"], 0.9 * whole);
}

// What plan/ has no time of is null even with a machine: the planner has no drafts.
TEST_F(PlannedTime, IsNullForRunsThatAreNotPlanned) {
  save(1);
  const json drafted = json::parse(run(generate({"--prompt", "line", "--speculate", "2"})).output);
  EXPECT_TRUE(drafted["planned_token_seconds"].is_null());
}

TEST_F(PlannedTime, OfAGenerationIsThatOfThePlanner) {
  const plan::Machine machine = save(2, /*seconds_per_call=*/1e-5);
  const std::string batch = scratch_.put(
      "batch", "{\"prompt_ids\": [1, 2, 3]}\n{\"prompt_ids\": [4, 5, 6]}\n{\"prompt_ids\": [1, 1, 1]}\n");
  const Outcome outcome =
      run(generate({"--batch-file", batch, "--tp", "2", "--max-new-tokens", "8", "--batch-size", "2"}));
  const json document = json::parse(outcome.output);
  const json plan = planned(machine, {"plan", "--task", "infer", "--ranks", "2", "--tp", "2", "--batch-size",
                                      "2", "--prompt-tokens", "3", "--new-tokens", "8"})[0];
  EXPECT_DOUBLE_EQ(document["planned_token_seconds"], plan["token_seconds"]["total"]);
  // Three texts, two at once.
  EXPECT_DOUBLE_EQ(document["planned_prompt_seconds"], 1.5 * plan["prompt_seconds"]["total"].get<double>());
  EXPECT_DOUBLE_EQ(document["planned_seconds"], 1.5 * plan["seconds"].get<double>());
  EXPECT_EQ(document["planned_machine"], "synthetic");
  EXPECT_EQ(document["measured_prompt_seconds"], document["prefill"]["seconds"]);
  EXPECT_GT(document["measured_token_seconds"], 0);
  for (const char* part : {"; planned time: ", "generate: peak memory: ", "; prompts: ", "; token: "})
    EXPECT_PRED2(contains, outcome.errors, part);
}

TEST_F(PlannedTime, OfAGenerationOverStagesIsThatOfThePlanner) {
  const plan::Machine machine = save(2, /*seconds_per_call=*/1e-5);
  const Words words{"--prompt-ids", "1,2,3", "--num-return",     "4", "--temperature", "1",
                    "--pp",         "2",     "--max-new-tokens", "8"};
  const json document = json::parse(run(generate(words)).output);
  const json plan = planned(machine, {"plan", "--task", "infer", "--ranks", "2", "--tp", "1", "--pp", "2",
                                      "--batch-size", "4", "--prompt-tokens", "3", "--new-tokens", "8"})[0];
  EXPECT_DOUBLE_EQ(document["planned_token_seconds"], plan["pipelined_token_seconds"]);
  EXPECT_DOUBLE_EQ(document["planned_prompt_seconds"], plan["prompt_seconds"]["total"]);
  EXPECT_DOUBLE_EQ(document["planned_seconds"], plan["seconds"]);
  Words uneven = words;
  uneven.insert(uneven.end(), {"--pp-layers", "1,1"});
  EXPECT_TRUE(json::parse(run(generate(uneven)).output)["planned_seconds"].is_null());
}

TEST_F(PlannedTime, ADamagedFileIsIgnoredWithAWarning) {
  save(1);
  const base::MeasuredFile file = saved_machine_file({1, 1});
  for (const std::string text : {"{}", "nothing"}) {
    file.write(text);
    const Outcome outcome = run(train({}));
    EXPECT_TRUE(json::parse(outcome.output)["planned_step_seconds"].is_null());
    EXPECT_PRED2(contains, outcome.errors, "warning: train: " + file.path());
    EXPECT_PRED2(contains, outcome.errors, "the file is ignored");
  }
  std::ofstream(file.path()) << "measured_on another machine\n";
  EXPECT_PRED2(contains, run(train({})).errors, "must be measured on 1 rank of 1 thread, ");
}

TEST(StepTimes, TheMedianLeavesTheFirstTwoStepsOut) {
  StepTimes times;
  times.seconds = {9, 8};
  EXPECT_EQ(times.median(), std::nullopt);
  times.seconds = {9, 8, 3};
  EXPECT_EQ(times.median(), 3);
  times.seconds = {0, 8, 3, 1, 2, 7};
  EXPECT_EQ(times.median(), 2.5);
}

TEST(StepTimes, OnlyALongRunIsToldHowToGetAPlan) {
  StepTimes times{.ranks = 3, .steps = 2, .seconds = {1, 2}};
  EXPECT_EQ(compared_text(times), "");
  times.seconds = {40, 50};
  EXPECT_PRED2(contains, compared_text(times), "shardwise bench machine --tp 3 --save");
  times.is_planned_for = false;
  EXPECT_EQ(compared_text(times), "");
  times.planned = plan::StepTime{.compute = 22.5};
  EXPECT_EQ(compared_text(times),
            "\nstep: 22.50 s planned; all steps: 90.00 s measured, 45.00 s planned (-50.0 %)");
}

}  // namespace
}  // namespace shardwise::cli::planned_time_test

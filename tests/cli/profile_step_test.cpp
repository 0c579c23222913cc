// `shardwise profile step`: the parts of a step add up, on ranks and by model; and usage errors.
#include "tests/cli/trained_model.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::profile_step_test {
namespace {

Words step(const Words& more) {
  Words argv{"profile", "step", "--model", "tiny", "--seq-len", "16", "--batch-size", "2"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST(ProfileStep, SplitsTheStepOfEveryNumberOfRanks) {
  for (const char* parallel : {"--sequence-parallel", "--no-sequence-parallel"}) {
    const json found =
        json::parse(run(step({"--ranks", "1,2", parallel, "--seconds", "0.01", "--json"})).output);
    EXPECT_TRUE(found["measured"].get<bool>());
    ASSERT_EQ(found["rows"].size(), 2u);
    for (const json& row : found["rows"]) {
      const bool is_parallel = row["ranks"] > 1;
      const json& parts = row["parts_ms"];
      for (const char* part : {"compute", "optimizer", "other"})
        EXPECT_GT(parts[part].get<double>(), 0) << part;
      EXPECT_EQ(parts["communication"].get<double>() > 0, is_parallel);
      EXPECT_EQ(parts["waiting"].get<double>() > 0, is_parallel);
      EXPECT_GE(row["repetitions"], 5);
      EXPECT_DOUBLE_EQ(row["step_ms"].get<double>() * 1e3, row["step"]["median_us"].get<double>());
      EXPECT_NEAR(row["tokens_per_second"].get<double>() * row["step_ms"].get<double>(), 32e3, 1e-6);
      EXPECT_DOUBLE_EQ(row["tokens_per_second_per_rank"].get<double>() * row["ranks"].get<double>(),
                       row["tokens_per_second"].get<double>());
      EXPECT_FALSE(row.contains("largest_batch"));
    }
    EXPECT_EQ(found["rows"][0]["speed_up"], 1);
    // The ranks share all weights but the norms.
    const int64_t whole = found["rows"][0]["weight_bytes"], half = found["rows"][1]["weight_bytes"];
    EXPECT_GT(2 * half, whole);
    EXPECT_LT(2 * half, whole * 1.1);
  }
}

TEST(ProfileStep, OfADescribedMachineIsItsPlan) {
  const Outcome outcome = call({"profile", "step", "--model", "llama-3.1-8b", "--machine", "h100", "--ranks",
                                "1,8", "--seq-len", "2048", "--batch-size", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  const json found = json::parse(outcome.output);
  EXPECT_EQ(found["note"], "by model, not measured");
  for (const json& row : found["rows"]) {
    const json& parts = row["parts_ms"];
    double sum = 0;
    for (const json& part : parts) sum += part.get<double>();
    EXPECT_NEAR(sum, row["step_ms"].get<double>(), 1e-9 * sum);
    EXPECT_FALSE(parts.contains("waiting"));
    const std::string ranks = row["ranks"].dump();
    const Outcome planned =
        call({"plan", "--model",     "llama-3.1-8b", "--machine",    "h100", "--ranks",
              ranks,  "--tp",        ranks,          "--pp",         "1",    "--dp",
              "1",    "--seq-len",   "2048",         "--batch-size", "2",    "--micro-batch-size",
              "2",    "--recompute", "none",         "--memory-cap", "500",  "--json"});
    ASSERT_EQ(planned.code, 0) << planned.output;
    const json plans = json::parse(planned.output)["plans"];
    const auto is_same = [&](const json& plan) {
      return std::abs(plan["seconds"]["total"].get<double>() * 1e3 / row["step_ms"].get<double>() - 1) < 1e-9;
    };
    EXPECT_TRUE(std::any_of(plans.begin(), plans.end(), is_same)) << ranks;
  }
}

/// Returns whether `plan` has a step of one micro-batch of `size` sequences on `ranks` ranks within 12 GB.
bool fits(const std::string& ranks, int64_t size, bool sequence_parallel) {
  const std::string batch = std::to_string(size);
  const Outcome outcome =
      call({"plan", "--model",     "llama-3.2-1b", "--machine",    "h100", "--ranks",
            ranks,  "--tp",        ranks,          "--pp",         "1",    "--dp",
            "1",    "--seq-len",   "2048",         "--batch-size", batch,  "--micro-batch-size",
            batch,  "--recompute", "none",         "--memory-cap", "12",   "--zero",
            "0",    "--json"});
  if (outcome.code != 0) return false;
  const json plans = json::parse(outcome.output)["plans"];
  return std::any_of(plans.begin(), plans.end(), [&](const json& plan) {
    return ranks == "1" || plan["degrees"]["sequence_parallel"] == sequence_parallel;
  });
}

TEST(ProfileStep, TheLargestBatchIsTheLastThatPlanAccepts) {
  for (const bool sp : {true, false}) {
    Words argv{"profile",      "step",      "--model",
               "llama-3.2-1b", "--machine", "h100",
               "--ranks",      "1,2,4",     "--seq-len",
               "2048",         "--largest", "--memory-cap",
               "12",           "--json",    sp ? "--sequence-parallel" : "--no-sequence-parallel"};
    const Outcome outcome = call(argv);
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    const json found = json::parse(outcome.output);
    EXPECT_EQ(found["memory_cap_bytes"], 12'000'000'000);
    EXPECT_EQ(found["rows"][0]["largest_batch"], 0);  // 16 bytes for each of 1.2e9 parameters
    for (const json& row : found["rows"]) {
      const int64_t size = row["largest_batch"];
      const std::string ranks = row["ranks"].dump();
      EXPECT_TRUE(size == 0 || fits(ranks, size, sp)) << ranks << " " << size;
      EXPECT_FALSE(fits(ranks, size + 1, sp)) << ranks << " " << size;
    }
    EXPECT_GT(found["rows"][2]["largest_batch"], found["rows"][1]["largest_batch"]);
  }
}

TEST(ProfileStep, TheLargestBatchOfThisMachineIsMeasuredBeside) {
  const auto found = [](const std::string& cap) {
    return json::parse(
        run(step({"--ranks", "1,2", "--seconds", "0.01", "--largest", "--memory-cap", cap, "--json"}))
            .output);
  };
  const json large = found("0.2"), small = found("0.1");
  EXPECT_EQ(large["memory_cap_bytes"], 200'000'000);
  for (size_t i = 0; i < 2; ++i) {
    const int64_t of_large = large["rows"][i]["largest_batch"], of_small = small["rows"][i]["largest_batch"];
    EXPECT_GT(of_small, 0);
    EXPECT_GT(of_large, of_small);
  }
  EXPECT_GT(small["rows"][1]["largest_batch"], small["rows"][0]["largest_batch"]);
  const std::string text =
      run(step({"--ranks", "1,2", "--seconds", "0.01", "--largest", "--memory-cap", "1e-5"})).output;
  EXPECT_PRED2(contains, text, "largest batch\n");
  EXPECT_PRED2(contains, text, "  none\n");
  EXPECT_PRED2(contains, text, "largest batch: sequences of a training step of the whole model");
}

TEST(ProfileStep, PrintsATable) {
  const std::string text = run(step({"--ranks", "1,2", "--seconds", "0.01", "--dtype", "fp32"})).output;
  for (const char* part : {"profile step: tiny, 2 x 16 tokens, fp32, sequence parallelism", "waiting ms",
                           "tokens/s per rank", "\n1 ", "\n2 "})
    EXPECT_PRED2(contains, text, part);
}

TEST(ProfileStep, RefusesBadInput) {
  expect_refused(step({"--ranks", "0"}), {"profile step: --ranks", "got 0"});
  expect_refused(step({"--ranks", "1,64"}), {"profile step: --ranks must be from 1 to", "got 64"});
  expect_refused(step({"--seq-len", "0"}), {"--seq-len", "got 0"});
  expect_refused(step({"--batch-size", "1048577"}), {"--batch-size must be from 1 to 1048576; got 1048577"});
  expect_refused(step({"--dtype", "int8"}), {"--dtype must be one of", "got int8"});
  expect_refused(step({"--machine", "abacus"}), {"profile step: --machine", "got abacus"});
  expect_refused(step({"--memory-cap", "2"}), {"profile step: --memory-cap needs --largest; got 2 alone"});
  expect_refused(step({"--largest", "--memory-cap", "0"}),
                 {"profile step: --memory-cap must be in (0, 1e6) GB"});
}

}  // namespace
}  // namespace shardwise::cli::profile_step_test

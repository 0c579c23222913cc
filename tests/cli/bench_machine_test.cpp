// `shardwise bench machine`: what it measures, and that `shardwise plan` reads it.
// benchmarks/planned_times.py compares the plans with measured steps.
#include "shardwise/cli/saved_machine.h"
#include "tests/cli/trained_model.h"
#include "tests/support/environment.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::bench_machine_test {
namespace {

Words machine(const Words& more) {
  Words argv{"bench", "machine", "--seconds", "0.001"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST(BenchMachine, MeasuresWhatPlanReads) {
  const test::TemporaryDirectory scratch;
  for (const int ranks : {1, 2}) {
    const std::string text = run(machine({"--tp", std::to_string(ranks), "--json"})).output;
    const json measured = json::parse(text);
    EXPECT_EQ(measured["devices_per_node"], ranks);
    EXPECT_TRUE(measured["shares_memory"].get<bool>());
    EXPECT_EQ(measured.contains("collectives"), ranks > 1);
    // No product is faster than arithmetic in registers, but for noise.
    for (const char* rates : {"rates_16_bit", "rates_32_bit"}) {
      for (const char* operation : {"product", "input_gradient", "weight_gradient", "attention"}) {
        for (const json& point : measured[rates][operation])
          EXPECT_LT(point[1].get<double>(), 2 * measured[rates]["flop_per_second"].get<double>())
              << rates << operation;
      }
    }
    for (const char* place : {"from_memory", "from_cache"}) {
      for (const char* format : {"bf16", "int8", "int4"})
        EXPECT_EQ(measured["inference"][format][place].size(), 11u);
      for (const char* queries : {"one_query", "shared"})
        EXPECT_GT(measured["inference"]["cached_attention"][queries][place].size(), 0u);
    }
    EXPECT_GT(measured["inference"]["reading"].size(), 0u);
    EXPECT_GT(measured["inference"]["seconds_per_product"], 0);
    const std::string file = scratch.put("machine.json", text);
    for (const char* task : {"train", "infer"}) {
      const Words plan{"plan", "--task",  task,      "--model", "small",  "--machine",
                       file,   "--dtype", "float32", "--json",  "--ranks"};
      Words words = plan;
      words.push_back(std::to_string(ranks));
      EXPECT_GT(json::parse(run(words).output)["plans"].size(), 0u);
      words = plan;
      words.push_back(std::to_string(2 * ranks));
      expect_refused(words, {"--ranks must be at most the " + std::to_string(ranks) + " devices"});
    }
  }
}

// The weights that a run holds are those that are planned. Packed ones have whole panels, so sizes here need
// no padding.
TEST(PlannedWeights, AreThoseOfARun) {
  const test::TemporaryDirectory scratch;
  config::Config config = config::preset("tiny");
  config.hidden_size = 256;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.intermediate_size = 512;
  config.vocab_size = 1024;
  const std::string file = scratch.put("config.json", config::to_json(config));
  for (const char* tp : {"1", "2"}) {
    const json measured =
        json::parse(run({"bench", "prefill", "--model-config", file, "--tp", tp, "--formats",
                         "bf16,int8,int4", "--contexts", "8", "--seconds", "0.01", "--json"})
                        .output);
    ASSERT_EQ(measured["formats"].size(), 3u);
    for (const json& format : measured["formats"]) {
      Words plan{"plan", "--task", "infer", "--model", file, "--ranks", tp, "--tp", tp, "--json"};
      if (format["format"] != "bf16") plan.insert(plan.end(), {"--quantize", format["format"]});
      const json planned = json::parse(run(plan).output)["plans"][0]["memory_bytes"]["weights"];
      EXPECT_EQ(planned, format["weight_bytes"]) << format["format"] << " tp " << tp;
    }
  }
}

TEST(BenchMachine, PrintsATable) {
  const std::string text = run(machine({"--tp", "2"})).output;
  for (const char* part : {"shardwise bench machine, 2 ranks", "reading", "optimizer", "weight gradient",
                           "elementwise", "all_gather in place", "reduce_scatter"})
    EXPECT_PRED2(contains, text, part);
}

TEST(BenchMachine, SavesTheMachineForRunsOfAsManyRanks) {
  const test::TemporaryDirectory cache;
  testing::Environment environment;
  environment.set("XDG_CACHE_HOME", cache.path());
  EXPECT_EQ(saved_machine("test", {2, 1}), std::nullopt);
  const Outcome outcome = run(machine({"--tp", "2", "--save", "--quiet"}));
  EXPECT_EQ(outcome.output, "");
  const base::MeasuredFile file = saved_machine_file({2, 1});
  EXPECT_TRUE(file.path().starts_with(cache.path() + "/shardwise/machine-2-")) << file.path();
  EXPECT_PRED2(contains, outcome.errors, "bench machine: saved for 2 ranks to " + file.path());
  const std::optional<plan::Machine> saved = saved_machine("test", {2, 1});
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->devices_per_node, 2);
  EXPECT_TRUE(saved->collectives);
  // Other ranks and threads have other files.
  for (const HostRanks& other : {HostRanks{1, 1}, HostRanks{2, 2}, HostRanks{3, 1}})
    EXPECT_FALSE(saved_machine("test", other));
  environment.set("XDG_CACHE_HOME", std::nullopt);
  environment.set("HOME", std::nullopt);
  expect_refused(machine({"--save"}), {"--save needs an absolute path in XDG_CACHE_HOME or HOME"});
}

TEST(BenchMachine, RefusesBadInput) {
  expect_refused(machine({"--quiet"}), {"--quiet needs --save"});
  expect_refused(machine({"--quiet", "--save", "--json"}), {"--quiet needs --save, and no --json"});
  expect_refused(machine({"--tp", "0"}), {"--tp", "got 0"});
  expect_refused(machine({"--seconds", "0"}), {"--seconds", "got 0"});
  expect_refused(machine({"--seconds", "3601"}), {"--seconds", "got 3601"});
  expect_refused(machine({"--model", "small"}), {"--model"});
}

}  // namespace
}  // namespace shardwise::cli::bench_machine_test

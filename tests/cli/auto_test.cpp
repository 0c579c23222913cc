// `--auto` of train and generate on saved machines: what it chooses, that a run with the chosen flags is the
// same, and what it refuses.
#include <regex>

#include "shardwise/cli/flags.h"
#include "shardwise/launch/affinity.h"
#include "shardwise/plan/host_search.h"
#include "tests/cli/saved_machines.h"

namespace shardwise::cli::auto_test {
namespace {

constexpr int64_t kHeads = 6;  // of small_byte_config

class Auto : public SavedMachines {
 protected:
  /// Saves a machine for each number of ranks that is compared on this host; returns the most ranks that can
  /// split the heads.
  static int64_t save_all(double seconds_per_call) {
    const launch::AvailableCpus& cpus = launch::available_cpus();
    const int64_t cores = std::min(cpus.cores, cpus.quota);
    std::set<int64_t> ranks;
    for (const int64_t most : {cores, std::min(cores, kHeads)})
      for (const int64_t count : plan::ranks_to_compare(most)) ranks.insert(count);
    for (const int64_t count : ranks) save(count, seconds_per_call);
    return *std::prev(ranks.upper_bound(kHeads));
  }
  Words train(const Words& more) const {
    Words words = training({"train", "--model-config", scratch_ / "config.json", "--json", "--auto"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Returns the flags of a run whose ranks are tensor parallel and whose step is one micro-batch.
  Words train_tp(const Words& more) const {
    Words words = train({"--pp", "1", "--dp", "1", "--grad-accum", "1"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words generate(const Words& more) const {
    Words words{"generate", "--model", model_, "--max-new-tokens", "5", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::string tp(int64_t ranks) { return "chooses tp " + std::to_string(ranks); }
  /// Returns how many times `part` is in `text`.
  static size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
};

TEST_F(Auto, TakesOneRankWhereCommunicationIsDear) {
  save_all(/*seconds_per_call=*/10);
  const Outcome trained = run(train({})), generated = run(generate({"--prompt", "line", "--auto"}));
  EXPECT_PRED2(contains, trained.errors, "train: --auto " + tp(1) + ", micro-batches of ");
  EXPECT_EQ(json::parse(trained.output)["ranks"].size(), 1u);
  EXPECT_PRED2(contains, generated.errors, "generate: --auto " + tp(1) + ": planned ");
  EXPECT_EQ(json::parse(generated.output)["tp"], 1);
}

TEST_F(Auto, TakesTheMostRanksWhereCommunicationIsFree) {
  const int64_t most = save_all(/*seconds_per_call=*/0);
  const Outcome trained = run(train_tp({})), generated = run(generate({"--prompt", "line", "--auto"}));
  for (const Outcome& outcome : {trained, generated}) {
    EXPECT_PRED2(contains, outcome.errors, tp(most));
    EXPECT_EQ(count(outcome.errors, "chooses tp"), 1u) << outcome.errors;  // and not once more on each rank
  }
  EXPECT_EQ(json::parse(trained.output)["ranks"].size(), size_t(most));
  EXPECT_EQ(json::parse(generated.output)["tp"], most);
}

// The plan that the line names is the one that runs: its planned time is the one that the run reports, and
// the loss is that of a run with the same flags.
TEST_F(Auto, RunsThePlanThatItNames) {
  save(2, /*seconds_per_call=*/1e-6);
  const std::string report = scratch_ / "report.json";
  const Outcome outcome = run(train_tp({"--tp", "2", "--report", report}));
  std::smatch named;
  ASSERT_TRUE(std::regex_search(
      outcome.errors, named,
      std::regex(
          R"(chooses tp 2 (with|without) sequence parallelism, micro-batches of 2, recompute (\w+): planned (\S+ \S+) a step, \S+ MB a rank; next: tp 2 .*: \S+ m?s, \S+ m?s more \(compute .* ms, communication .* ms\))")))
      << outcome.errors;
  EXPECT_PRED2(contains, outcome.errors, "; planned time: " + named.str(3) + " a step");
  const json figures = json::parse(test::contents(report))["run"];
  EXPECT_EQ(figures["tp"], 2);
  EXPECT_EQ(figures["sequence_parallel"], named.str(1) == "with");
  EXPECT_EQ(figures["recompute"], named.str(2));
  const Outcome by_hand = run(
      training({"train", "--model-config", scratch_ / "config.json", "--json", "--tp", "2", "--recompute",
                named.str(2), named.str(1) == "with" ? "--sequence-parallel" : "--no-sequence-parallel"}));
  EXPECT_EQ(json::parse(outcome.output)["loss"], json::parse(by_hand.output)["loss"]);
}

TEST_F(Auto, KeepsTheFlagsThatAreGiven) {
  save(2);
  const Outcome outcome = run(train_tp({"--tp", "2", "--recompute", "full", "--no-sequence-parallel"}));
  EXPECT_PRED2(contains, outcome.errors,
               tp(2) + " without sequence parallelism, micro-batches of 2, recompute full: planned ");
  EXPECT_PRED2(contains, outcome.errors, "; the flags leave no other");
  // In a file too.
  const std::string file = scratch_.put(
      "flags.json",
      R"({"auto": true, "tp": 2, "pp": 1, "dp": 1, "recompute": "selective", "sequence_parallel": true})");
  const Outcome by_file =
      run(training({"train", "--model-config", scratch_ / "config.json", "--json", "--config", file}));
  EXPECT_PRED2(contains, by_file.errors, tp(2) + " with sequence parallelism, micro-batches of ");
  EXPECT_PRED2(contains, by_file.errors, ", recompute selective: planned ");
  EXPECT_EQ(json::parse(by_file.output)["ranks"].size(), 2u);
}

TEST_F(Auto, MemoryForcesRecomputation) {
  save(1);
  Words words = train_tp({"--tp", "1", "--batch-size", "64"});
  std::map<std::string, double> needed;  // by mode, in bytes
  for (const char* mode : {"none", "selective", "full"}) {
    Words pinned = words;
    pinned.insert(pinned.end(), {"--recompute", mode, "--memory-cap", "0.000001"});
    const std::string errors = call(pinned).errors;
    std::smatch bytes;
    ASSERT_TRUE(std::regex_search(errors, bytes, std::regex(R"(needs (\S+) MB)"))) << errors;
    needed[mode] = 1e6 * std::stod(bytes.str(1));
  }
  ASSERT_LT(needed["full"], needed["selective"] - 2e4);
  const double cap = (needed["full"] + needed["selective"]) / 2;
  words.insert(words.end(), {"--memory-cap", std::to_string(cap / 1e9)});
  const Outcome outcome = run(words);
  EXPECT_PRED2(contains, outcome.errors, "recompute full");
  EXPECT_PRED2(contains, outcome.errors, "; memory does not suffice for the 2 others");
}

TEST_F(Auto, ResumesWithTheSettingsOfTheCheckpoint) {
  save(2);
  const Outcome outcome = run({"train", "--text", scratch_ / "text", "--resume", model_, "--save", model_,
                               "--steps", "3", "--auto", "--tp", "2", "--pp", "1", "--dp", "1", "--json"});
  EXPECT_PRED2(contains, outcome.errors, tp(2));
  EXPECT_EQ(json::parse(outcome.output)["step"], 3);
}

// Each replica has one of the step's two sequences, and so has each rank in an evaluation; the losses are
// those of one rank.
TEST_F(Auto, TakesReplicasWhereTheyCallLess) {
  save_all(/*seconds_per_call=*/1e-5);
  const std::string report = scratch_ / "report.json";
  const Words flags{"--pp", "1", "--eval-batches", "3", "--val-fraction", "0.3", "--report", report};
  const Outcome outcome = run(train(flags));
  if (launch::available_cpus().cores == 2) {
    EXPECT_PRED2(contains, outcome.errors, tp(1) + ", dp 2, micro-batches of 1, recompute none: planned ");
  }
  const json chosen = json::parse(test::contents(report))["run"];
  EXPECT_EQ(chosen["tokens_per_step"], 2 * 11);
  Words words{"train", "--model-config", scratch_ / "config.json", "--json", "--tp", "1"};
  words.insert(words.end(), flags.begin(), flags.end());
  const json by_hand = json::parse(run(training(words)).output), by_choice = json::parse(outcome.output);
  for (const char* loss : {"loss", "val_loss"})
    EXPECT_NEAR(by_choice[loss].get<double>(), by_hand[loss].get<double>(), 1e-5) << loss;
}

TEST_F(Auto, LeavesStandardInputToTheRanks) {
  save(2);
  Program program({SHARDWISE_PROGRAM, "generate", "--model", model_, "--max-new-tokens", "5", "--json",
                   "--auto", "--prompt-file", "-", "--config", scratch_.put("flags.json", R"({"tp": 2})")},
                  {.environment = kOneThread.environment, .input = "line 4"});
  ASSERT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
  const json document = json::parse(program.output());
  EXPECT_EQ(document["prompt"], "line 4");
  EXPECT_EQ(document["tp"], 2);
}

TEST_F(Auto, TakesTheRanksOfPanelFiles) {
  save(3);
  const std::string panels = scratch_ / "panels";
  run({"shard", model_, panels, "--packed", "--tp", "3", "--quantize", "int8"});
  const json document =
      json::parse(run({"generate", "--model", panels, "--prompt", "line", "--json", "--auto"}).output);
  EXPECT_EQ(document["tp"], 3);
}

TEST_F(Auto, RefusesWhatItCannotPlan) {
  save_all(0);
  const Words tiny{"--memory-cap", "0.0001"};
  Words words = train(tiny);
  expect_refused(words, {"--auto must find a plan that memory suffices for", "got 0.10 MB a rank", "needs "});
  expect_refused(generate({"--prompt", "x", "--auto", "--memory-cap", "0.00001"}),
                 {"--auto must find a plan that memory suffices for", "got 0.01 MB a rank"});
  expect_refused(training({"train", "--model-config", scratch_ / "config.json", "--memory-cap", "1"}),
                 {"--memory-cap needs --auto"});
  expect_refused(train({"--memory-cap", "0"}), {"--memory-cap must be in (0, 1e6) GB", "got 0"});
  expect_refused(train({"--tp", "2", "--split-batch", "--no-sequence-parallel"}),
                 {"no planned time", "got --split-batch"});
  expect_refused(train({"--pp", "2", "--pp-layers", "1,1"}), {"no planned time", "got --pp-layers"});
  expect_refused(train({"--dtype", "fp64"}), {"no planned time", "got --dtype fp64"});
  expect_refused(train({"--pp-schedule", "afab"}), {"no planned time", "got --pp-schedule afab"});
  // Before anything is measured: there is no machine of 3 ranks.
  expect_refused(train({"--pp", "3"}), {"--pp must be at most the number of layers, 2; got 3"});
  expect_refused(train({"--tp", "1", "--pp", "1", "--dp", "3", "--grad-accum", "2"}),
                 {"--auto must be left a split that can run; got tp 1, dp 3",
                  "dp 3 does not divide the batch of 4 sequences"});
  expect_refused(train({"--dp", "1000"}), {"from 1 to", "ranks", "got 1000"});
  expect_refused(train({"--dp", "9223372036854775807", "--grad-accum", "1"}), {"from 1 to", "ranks", "got"});
  expect_refused(generate({"--prompt", "x", "--auto", "--speculate", "2"}), {"got --speculate"});
  for (const char* device : {"emulated", "cuda", "auto"}) {
    const std::string error =
        std::string("--auto measures the processor, so it must be with --device cpu; got ") + device +
        "; give --tp instead";
    expect_refused(train({"--device", device}), {error});
    expect_refused(generate({"--prompt", "x", "--auto", "--device", device}), {error});
  }
  expect_refused(train({"--tp", "7"}), {"--tp must be at most the 6 query heads; got 7"});
  expect_refused(train({"--tp", "0"}), {"--tp"});
}

TEST_F(Auto, RefusesRanksOfAnotherLauncher) {
  for (const std::string& variable : testing::torchrun_environment(0, 2, "auto")) {
    const size_t at = variable.find('=');
    environment_.set(variable.substr(0, at), variable.substr(at + 1));
  }
  expect_refused(train({"--tp", "2"}), {"--auto chooses the number of ranks", "got 2", "give --tp"});
}

TEST_F(Auto, NeedsADirectoryForWhatItMeasures) {
  environment_.set("XDG_CACHE_HOME", std::nullopt);
  environment_.set("HOME", std::nullopt);
  expect_refused(train({}), {"--auto needs an absolute path in XDG_CACHE_HOME or HOME"});
}

TEST(FlagsIsGiven, KnowsWhatTheCommandLineAndTheFileSet) {
  const Scratch scratch;
  int64_t a = 1, b = 1, c = 1;
  bool d = true;
  Flags flags("test", "");
  flags.value("--a,--alpha N", a, "");
  flags.value("--b N", b, "");
  flags.value("--c N", c, "");
  flags.on_off("--d,!--no-d", d, "");
  ASSERT_TRUE(flags.parse({"--alpha", "2", "--no-d", "--config", scratch.put("flags", R"({"b": 1})")}));
  EXPECT_TRUE(flags.is_given("a"));
  EXPECT_TRUE(flags.is_given("b"));
  EXPECT_FALSE(flags.is_given("c"));
  EXPECT_TRUE(flags.is_given("d"));
}

}  // namespace
}  // namespace shardwise::cli::auto_test

// `shardwise bench`: every point is reported with plausible times, and usage errors.
#include <map>

#include "shardwise/bench/all_reduce.h"
#include "shardwise/bench/kernel_cases.h"
#include "shardwise/config/config.h"
#include "tests/cli/trained_model.h"
#include "tests/support/environment.h"
#include "tests/support/tolerance.h"

namespace shardwise::cli::bench_test {
namespace {

/// Runs a short benchmark and returns its JSON document.
json document(const Words& more) {
  Words argv{"bench", "comm", "--seconds", "0.01", "--json"};
  argv.insert(argv.end(), more.begin(), more.end());
  return json::parse(run(argv).output);
}

void expect_times(const json& point) {
  const json& raw = point["raw"];
  EXPECT_GT(raw["best_us"].get<double>(), 0) << point;
  EXPECT_LE(raw["best_us"], raw["lower_quartile_us"]) << point;
  EXPECT_LE(raw["lower_quartile_us"], raw["median_us"]) << point;
  EXPECT_LE(raw["median_us"], raw["upper_quartile_us"]) << point;
  EXPECT_GE(point["repetitions"], 5) << point;
  EXPECT_GE(point["calls_per_repetition"], 1) << point;
  if (point["mode"] == "warm") {
    EXPECT_EQ(point["net"], raw);
  } else {
    EXPECT_LT(point["net"]["upper_quartile_us"], raw["upper_quartile_us"]) << point;
  }
}

/// Includes a size with fewer elements than ranks.
void expect_every_point(int tp, const std::string& dtype) {
  const json found = document({"--tp", std::to_string(tp), "--dtype", dtype, "--sizes", "4,4KB,20KB"});
  EXPECT_EQ(found["tp"], tp);
  EXPECT_EQ(found["dtype"], dtype);
  EXPECT_EQ(found["candidate"], "shardwise");
  EXPECT_NE(found["cpu"], "");
  json points;
  for (const json& point : found["points"]) {
    expect_times(point);
    points.push_back({point["bytes"], point["mode"], point["call"]});
  }
  json expected;
  for (const int bytes : {4, 4096, 20480}) {
    for (const char* mode : {"warm", "rewritten"}) {
      for (const char* call : {"all_reduce", "all_reduce_unregistered", "memcpy"})
        expected.push_back({bytes, mode, call});
    }
  }
  EXPECT_EQ(points, expected);
}

TEST(BenchComm, ReportsEveryPointOfTwoRanks) {
  expect_every_point(2, "fp32");
}

TEST(BenchComm, ReportsEveryPointOfThreeRanks) {
  expect_every_point(3, "bf16");
}

TEST(BenchComm, PrintsATablePerMode) {
  const Words shortly{"bench", "comm", "--sizes", "4KB,1MB", "--seconds", "0.01"};
  const std::string both = run(shortly).output;
  EXPECT_PRED2(contains, both, "2 ranks, fp32, ");
  EXPECT_PRED2(contains, both, "\nwarm: ");
  EXPECT_PRED2(contains, both, "\nrewritten: ");
  EXPECT_EQ(std::count(both.begin(), both.end(), '\n'), 9) << both;
  Words only = shortly;
  only.insert(only.end(), {"--mode", "rewritten"});
  const std::string one = run(only).output;
  EXPECT_FALSE(contains(one, "warm: ")) << one;
  EXPECT_PRED2(contains, one, "\n4KB ");
  EXPECT_PRED2(contains, one, "\n1MB ");
}

/// Returns a point with the times of both algorithms, in microseconds.
bench::Point both(int64_t bytes, double one_us, double two_us) {
  const auto measured = [](const char* name, double us) {
    const bench::Spread spread{us, us, us, us};
    return bench::Measured{name, 5, 1, spread, spread};
  };
  return {bytes, bench::CacheState::warm, {measured("one_shot", one_us), measured("two_shot", two_us)}};
}

TEST(BestOneShotBytes, MinimizesTheTotalTime) {
  EXPECT_EQ(bench::best_one_shot_bytes({}), 0);
  EXPECT_EQ(bench::best_one_shot_bytes({both(64, 1, 1)}), 0) << "no gain";
  EXPECT_EQ(bench::best_one_shot_bytes({both(64, 2, 1), both(128, 3, 1)}), 0);
  EXPECT_EQ(bench::best_one_shot_bytes({both(64, 1, 2), both(128, 1, 2)}), 128);
  EXPECT_EQ(bench::best_one_shot_bytes({both(64, 1, 2), both(128, 2, 1)}), 64);
  // A single point with a disturbed measurement does not end the search.
  EXPECT_EQ(bench::best_one_shot_bytes({both(64, 1.1, 1), both(128, 1, 2), both(256, 4, 1)}), 128);
  // Sizes in any order, each with two cache states that disagree.
  EXPECT_EQ(bench::best_one_shot_bytes({both(256, 1, 2), both(64, 1, 2), both(256, 4, 1), both(64, 1, 1)}),
            64);
}

/// Sets XDG_CACHE_HOME to a temporary directory, also for started programs.
class BenchCommTune : public ::testing::Test {
 protected:
  BenchCommTune() { environment_.set("XDG_CACHE_HOME", scratch_.path()); }
  const Scratch scratch_;
  testing::Environment environment_;
};

TEST_F(BenchCommTune, SavesTheLimitForLaterGroups) {
  const Words few{"--sizes", "64,4032", "--mode", "warm"};
  const auto with = [&](Words more) {
    more.insert(more.end(), few.begin(), few.end());
    return document(more);
  };
  EXPECT_EQ(with({})["one_shot"]["source"], "table");
  const json tuned = with({"--tune"});
  json calls;
  for (const json& point : tuned["points"]) {
    expect_times(point);
    calls.push_back({point["bytes"], point["call"]});
  }
  EXPECT_EQ(calls, json({{64, "one_shot"}, {64, "two_shot"}, {4032, "one_shot"}, {4032, "two_shot"}}));
  EXPECT_EQ(tuned["one_shot"]["source"], "table");
  const int64_t bytes = tuned["tuned"]["bytes"];
  EXPECT_TRUE(bytes == 0 || bytes == 64 || bytes == 4032) << bytes;
  EXPECT_TRUE(tuned["tuned"]["file"].get<std::string>().starts_with(scratch_.path())) << tuned["tuned"];
  EXPECT_EQ(with({})["one_shot"], json({{"bytes", bytes}, {"source", "measured"}}));
  EXPECT_EQ(with({"--tp", "3"})["one_shot"]["source"], "table");
}

TEST_F(BenchCommTune, PrintsATable) {
  const std::string text = run({"bench", "comm", "--tune", "--seconds", "0.01"}).output;
  EXPECT_PRED2(contains, text, "2 ranks, fp32, one-shot up to ");
  EXPECT_PRED2(contains, text, "one-shot us");
  EXPECT_PRED2(contains, text, "\n4032B ");
  EXPECT_PRED2(contains, text, "\nsaved for later runs: one-shot up to ");
  EXPECT_PRED2(contains, text, " bytes (measured), in " + scratch_.path());
}

TEST(BenchComm, Help) {
  const Outcome result = call({"bench", "--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_PRED2(contains, result.output, "shardwise bench WHAT");
  EXPECT_PRED2(contains, result.output, "  comm ");
  EXPECT_PRED2(contains, result.output, "  overlap ");
}

TEST(BenchComm, ValidationErrors) {
  expect_refused({"bench"}, {"bench: the first argument must be a benchmark; got none"});
  expect_refused({"bench", "all"}, {"got all; see shardwise bench --help"});
  for (const char* size : {"0", "x", "", "KB", "4kb", "4 KB", "4KBx", "6", "2GB", "99999999999GB"}) {
    expect_refused(
        {"bench", "comm", "--sizes", size + std::string(",4KB")},
        {"bench comm: --sizes must list multiples of 4 bytes up to 1GB", "got '" + std::string(size) + "'"});
  }
  expect_refused({"bench", "comm", "--sizes", "4KB,"}, {"--sizes", "got ''"});
  expect_refused({"bench", "comm", "--tp", "0"}, {"bench comm: --tp must be from 2 to 240", "got 0"});
  expect_refused({"bench", "comm", "--tp", "1"}, {"a single rank sends nothing; got 1"});
  expect_refused({"bench", "comm", "--tp", "241"}, {"got 241"});
  expect_refused({"bench", "comm", "--tp", "two"}, {"bench comm: --tp must be an integer", "'two'"});
  expect_refused({"bench", "comm", "--seconds", "0"}, {"bench comm: --seconds must be above 0", "got 0"});
  expect_refused({"bench", "comm", "--dtype", "fp16"}, {"--dtype must be one of fp32, bf16; got fp16"});
  expect_refused({"bench", "comm", "--mode", "cold"},
                 {"--mode must be one of warm, rewritten, both; got cold"});
  expect_refused({"bench", "comm", "--tune", "--sizes", "64,4KB"},
                 {"bench comm: --tune needs --sizes up to 4032 bytes", "got 4096"});
  expect_refused({"bench", "comm", "--timeout", "0"}, {"bench comm: --timeout", "got 0"});
  expect_refused({"bench", "comm", "--size", "4KB"}, {"bench comm: unknown flag --size"});
}

/// Returns the argv of a small benchmark, with `changed` and `more` flags.
Words overlap(const std::map<std::string, std::string>& changed, const Words& more = {}) {
  std::map<std::string, std::string> flags{
      {"--rows", "5"}, {"--hidden", "6"}, {"--ffn", "7"}, {"--seconds", "0.01"}};
  for (const auto& [flag, value] : changed) flags[flag] = value;
  Words argv{"bench", "overlap"};
  for (const auto& [flag, value] : flags) argv.insert(argv.end(), {flag, value});
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

/// Includes uneven shards of rows and features, and fewer rows than ranks.
TEST(BenchOverlap, ReportsEveryLayer) {
  for (const char* tp : {"2", "3"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const json found = json::parse(run(overlap({{"--tp", tp}, {"--dtype", dtype}}, {"--json"})).output);
      EXPECT_EQ(found["tp"], std::stoi(tp));
      EXPECT_EQ(found["dtype"], dtype);
      EXPECT_EQ(found["hidden"], 6);
      json names;
      for (const json& layer : found["layers"]) {
        names.push_back(layer["name"]);
        for (const char* key : {"overlap_on", "overlap_off", "gemm"})
          EXPECT_GT(layer[key]["best_us"].get<double>(), 0) << layer;
        EXPECT_GE(layer["repetitions"], 5) << layer;
      }
      EXPECT_EQ(names, json({"AllGather+GEMM", "AllGather+GEMM and backward", "GEMM+ReduceScatter",
                             "GEMM+ReduceScatter and backward"}));
    }
  }
  EXPECT_EQ(json::parse(run(overlap({{"--rows", "2"}, {"--tp", "3"}}, {"--json"})).output)["layers"].size(),
            4u);
}

TEST(BenchOverlap, PrintsATable) {
  const std::string table = run(overlap({})).output;
  EXPECT_PRED2(contains, table, "2 ranks, bf16, 5 rows, 6 x 7, ");
  EXPECT_PRED2(contains, table, "\nAllGather+GEMM and backward ");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 6) << table;
}

TEST(BenchOverlap, ValidationErrors) {
  expect_refused(overlap({{"--tp", "1"}}), {"bench overlap: --tp must be from 2 to 240; got 1"});
  expect_refused(overlap({{"--tp", "241"}}), {"got 241"});
  expect_refused(overlap({{"--rows", "0"}}), {"bench overlap: --rows must be from 1 to 1048576; got 0"});
  expect_refused(overlap({{"--ffn", "131073"}}),
                 {"bench overlap: --ffn must be from 1 to 131072; got 131073"});
  expect_refused(overlap({{"--dtype", "fp16"}}), {"--dtype must be one of fp32, bf16; got fp16"});
  expect_refused(overlap({{"--seconds", "0"}}), {"bench overlap: --seconds must be above 0", "got 0"});
}

TEST(BenchKernels, OursAndPyTorchsComputeTheSame) {
  for (const std::string& family : bench::kernel_families()) {
    for (const bench::KernelCase& one : bench::kernel_cases(family, /*rows=*/48, /*width=*/256, at::kFloat)) {
      const std::vector<at::Tensor> ours = one.ours(), torch = one.torch();
      ASSERT_LE(ours.size(), torch.size()) << one.name;
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_LT(testing::relative_error(ours[i], torch[i].to(at::kDouble)), 1e-5) << one.name << " " << i;
    }
  }
}

TEST(BenchKernels, ReportsForwardAndBackwardInEveryDtype) {
  const Words argv{"bench", "kernels",   "--kernels", "rms_norm,swiglu", "--rows", "8", "--width",
                   "128",   "--seconds", "0.01",      "--json"};
  const json found = json::parse(run(argv).output);
  json names;
  for (const json& kernel : found["kernels"]) {
    names.push_back({kernel["kernel"], kernel["dtype"]});
    for (const char* timed : {"ours", "torch", "copy"})
      EXPECT_GT(kernel[timed]["best_us"].get<double>(), 0) << kernel;
  }
  json expected;
  for (const char* dtype : {"fp32", "bf16"})
    for (const char* name : {"rms_norm forward", "rms_norm backward", "swiglu forward", "swiglu backward"})
      expected.push_back({name, dtype});
  EXPECT_EQ(names, expected);
  EXPECT_EQ(found["kernels"][0]["bytes"], 2 * 8 * 128 * 4);
}

TEST(BenchKernels, ValidationErrors) {
  const auto refused = [](const Words& more, const Words& named) {
    Words argv{"bench", "kernels"};
    argv.insert(argv.end(), more.begin(), more.end());
    expect_refused(argv, named);
  };
  refused({"--width", "130"}, {"bench kernels: --width must be a multiple of 128; got 130"});
  refused({"--rows", "0"}, {"bench kernels: --rows must be from 1 to 1048576; got 0"});
  refused({"--kernels", "rms_norm,conv"}, {"bench kernels: --kernels must be one of rms_norm, ", "got conv"});
  refused({"--dtypes", "fp16"}, {"bench kernels: --dtypes must be one of fp32, bf16; got fp16"});
}

}  // namespace
}  // namespace shardwise::cli::bench_test

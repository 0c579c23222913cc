// `shardwise bench decode` and `bench prefill`: every format, case and dtype of the cache, and usage errors.
#include "tests/cli/trained_model.h"

namespace shardwise::cli::bench_generation_test {
namespace {

Words generation(const std::string& what, const Words& more) {
  Words argv{"bench", what, "--preset", "tiny", "--seconds", "0.01"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST(BenchGeneration, ReportsEveryFormatAndCase) {
  for (const std::string what : {"decode", "prefill"}) {
    Words more{"--tp", "2", "--formats", "fp32,bf16,int8,int4", "--contexts", "9,600", "--json"};
    if (what == "decode") more.insert(more.end(), {"--texts", "1,3"});
    const json found = json::parse(run(generation(what, more)).output);
    EXPECT_EQ(found["tp"], 2);
    json names, bytes;
    for (const json& format : found["formats"]) {
      names.push_back(format["format"]);
      bytes.push_back(format["weight_bytes"]);
      EXPECT_GT(format["read"]["best_us"].get<double>(), 0) << format;
      json cases;
      for (const json& of : format["cases"]) {
        cases.push_back({of["context"], of["texts"], of["tokens"]});
        EXPECT_GT(of["step"]["best_us"].get<double>(), 0) << of;
      }
      EXPECT_EQ(cases, what == "decode" ? json({{9, 1, 1}, {9, 3, 3}, {600, 1, 1}, {600, 3, 3}})
                                        : json({{9, 1, 9}, {600, 1, 600}}));
    }
    EXPECT_EQ(names, json({"fp32", "bf16", "int8", "int4"}));
    for (const int i : {1, 2, 3}) EXPECT_LT(bytes[i], bytes[i - 1]);
  }
}

TEST(BenchGeneration, ComparesDtypesOfTheCache) {
  const Words flags{"--formats", "bf16", "--tp", "1", "--kv-cache-dtypes", "auto,int8", "--json"};
  const json found = json::parse(run(generation("decode", flags)).output);
  json names;
  for (const json& of : found["formats"][0]["cases"]) names.push_back(of["kv_cache_dtype"]);
  EXPECT_EQ(names, json({"auto", "int8"}));
}

TEST(BenchGeneration, PrintsATable) {
  const std::string table = run(generation("decode", {"--formats", "bf16", "--tp", "1"})).output;
  EXPECT_PRED2(contains, table, "bench decode: tiny, 1 ranks, ");
  EXPECT_PRED2(contains, table, "\nbf16    128 ");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3) << table;
}

TEST(BenchGeneration, RecordsAProfile) {
  const Scratch scratch;
  const Words flags{"--formats", "int8", "--tp", "2", "--profile", scratch / "trace.json"};
  EXPECT_PRED2(contains, run(generation("decode", flags)).errors, "bench decode: mean of 16 profiled tokens");
  EXPECT_PRED2(contains, run(generation("prefill", flags)).errors, "packed_product down_proj");
  EXPECT_TRUE(fs::is_regular_file(scratch / "trace.json"));
}

TEST(BenchGeneration, ValidationErrors) {
  expect_refused(generation("decode", {"--tp", "9"}), {"bench decode: ", "got 9"});
  expect_refused(generation("decode", {"--texts", "0"}),
                 {"bench decode: --texts must be from 1 to 1024; got 0"});
  expect_refused(generation("prefill", {"--texts", "2"}), {"bench prefill: unknown flag --texts"});
  expect_refused(generation("prefill", {"--contexts", "x"}),
                 {"bench prefill: --contexts must be an integer", "'x'"});
  expect_refused(generation("prefill", {"--formats", "fp16"}), {"--formats must be one of", "got fp16"});
  expect_refused(generation("decode", {"--formats", "bf16,int8", "--profile", "trace"}),
                 {"bench decode: --profile records one format and case; got 2 formats and 1 cases"});
  expect_refused(generation("decode", {"--kv-cache-dtypes", "auto,fp8"}),
                 {"bench decode: --kv-cache-dtypes must be one of auto, int8; got fp8"});
  expect_refused(generation("decode", {"--kv-cache-dtypes", "auto,"}),
                 {"bench decode: --kv-cache-dtypes must be one of auto, int8; got ''"});
  expect_refused(generation("decode", {"--head", "int4"}),
                 {"bench decode: --head int4 needs layers in int4"});
  expect_refused(generation("decode", {"--model-config", "x"}),
                 {"bench decode: --preset and --model-config are mutually exclusive; got tiny and x"});
}

}  // namespace
}  // namespace shardwise::cli::bench_generation_test

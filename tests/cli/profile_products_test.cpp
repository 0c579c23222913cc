// `shardwise profile products`: sizes, roofs, the model, and usage errors.
#include "tests/cli/trained_model.h"

namespace shardwise::cli::profile_products_test {
namespace {

Words products(const Words& more) {
  Words argv{"profile", "products"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST(ProfileProducts, MeasuresSquaresAndRowsNextToTheirRoofs) {
  const Words flags{"--sizes", "16:100",  "--rows", "1,8",       "--hidden", "64",    "--dtype",
                    "fp32",    "--ranks", "1,2",    "--seconds", "0.01",     "--json"};
  const json found = json::parse(run(products(flags)).output);
  EXPECT_TRUE(found["measured"].get<bool>());
  ASSERT_EQ(found["teams"].size(), 2u);
  for (const json& team : found["teams"]) {
    const double peak = team["peak_flop_per_second"];
    EXPECT_GT(peak, 0);
    EXPECT_PRED2(contains, team["peak_source"].get<std::string>(), "fp32 multiply-add");
    std::vector<int64_t> sizes;
    for (const json& square : team["squares"]) {
      const int64_t n = sizes.emplace_back(square["n"]);
      EXPECT_EQ(square["flop"], 2 * n * n * n);
      EXPECT_GT(square["flop_per_second"].get<double>(), 0);
      EXPECT_EQ(square["roof_flop_per_second"], peak);
    }
    EXPECT_EQ(sizes, (std::vector<int64_t>{16, 32, 64}));
    ASSERT_EQ(team["rows"].size(), 2u);
    for (const json& row : team["rows"]) {
      EXPECT_EQ(row["flop"], 2 * row["rows"].get<int64_t>() * 64 * 256);
      // 2 FLOP for each element of 4 bytes and row.
      const double by_memory = row["rows"].get<double>() / 2 * team["memory_bytes_per_second"].get<double>();
      EXPECT_NEAR(row["roof_flop_per_second"].get<double>(), std::min(peak, by_memory), 1e-6 * peak);
      EXPECT_NE(row["code"], "");
    }
  }
}

TEST(ProfileProducts, OfADescribedMachineStayBelowTheRoof) {
  for (const char* machine : {"a100", "h100", "b200"}) {
    const Outcome outcome = call(products({"--machine", machine, "--sizes", "64:8192", "--json"}));
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    const json team = json::parse(outcome.output)["teams"][0];
    EXPECT_EQ(team["squares"].size(), 8u);
    for (const char* kind : {"squares", "rows"}) {
      double before = 0;
      for (const json& one : team[kind]) {
        EXPECT_LE(one["flop_per_second"], one["roof_flop_per_second"]);
        EXPECT_GT(one["flop_per_second"].get<double>(), before);  // larger products are faster
        before = one["flop_per_second"];
      }
    }
    EXPECT_PRED2(contains, call(products({"--machine", machine})).output, "by model, not measured");
  }
}

TEST(ProfileProducts, PrintsATable) {
  const std::string text =
      run(products({"--sizes", "16,24", "--rows", "2", "--hidden", "32", "--seconds", "0.01"})).output;
  for (const char* part :
       {"profile products: bf16", "1 rank: arithmetic", "of roof", "24 x 24 x 24 ", "2 x 32 x 128 "})
    EXPECT_PRED2(contains, text, part);
}

TEST(ProfileProducts, RefusesBadInput) {
  expect_refused(products({"--sizes", "0:64"}), {"profile products: --sizes must be from 1 to", "got 0"});
  expect_refused(products({"--sizes", "64:32"}), {"--sizes must be from 64 to", "got 32"});
  expect_refused(products({"--sizes", "64:"}), {"--sizes must be an integer", "got ''"});
  expect_refused(products({"--sizes", "1:2:3"}), {"--sizes must be an integer", "got '2:3'"});
  expect_refused(products({"--rows", "0"}), {"--rows", "got 0"});
  expect_refused(products({"--ranks", "0"}), {"--ranks", "got 0"});
  expect_refused(products({"--dtype", "fp64"}), {"--dtype", "got fp64"});
  expect_refused(products({"--machine", "a100", "--ranks", "2"}), {"measures nothing; got --ranks"});
}

}  // namespace
}  // namespace shardwise::cli::profile_products_test

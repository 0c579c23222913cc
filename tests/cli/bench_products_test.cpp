// `shardwise bench products`: every weight, format and number of rows is reported, the measured choice of a
// library is used by later runs, and usage errors.
#include <algorithm>
#include <cmath>

#include "shardwise/base/files.h"
#include "shardwise/base/isa.h"
#include "shardwise/config/config.h"
#include "shardwise/kernels/product_library.h"
#include "tests/cli/trained_model.h"
#include "tests/support/environment.h"

namespace shardwise::cli::bench_products_test {
namespace {

/// Returns the argv of a short benchmark of two weights of the preset tiny.
Words products(const Words& more) {
  Words argv{"bench", "products", "--preset", "tiny", "--weights", "qkv_proj,lm_head", "--seconds", "0.01"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

TEST(BenchProducts, ReportsEveryWeightFormatAndNumberOfRows) {
  for (const int tp : {1, 2}) {
    const Words more{"--tp",  std::to_string(tp), "--formats", "fp32,bf16,int8,int4", "--rows", "1,9",
                     "--json"};
    const json found = json::parse(run(products(more)).output);
    EXPECT_EQ(found["tp"], tp);
    EXPECT_EQ(found["isa"], base::name_of(base::best_isa()));
    json names;
    for (const json& weight : found["weights"]) {
      names.push_back({weight["weight"], weight["format"]});
      EXPECT_GT(weight["read"]["best_us"].get<double>(), 0) << weight;
      EXPECT_GT(weight["arithmetic"]["best_us"].get<double>(), 0) << weight;
      ASSERT_EQ(weight["products"].size(), 2u) << weight;
      for (const int i : {0, 1}) {
        const json& product = weight["products"][i];
        EXPECT_EQ(product["rows"], i == 0 ? 1 : 9);
        EXPECT_NE(product["code"], "") << weight;
        EXPECT_GT(product["time"]["best_us"].get<double>(), 0) << weight;
      }
    }
    json expected;
    for (const char* weight : {"qkv_proj", "lm_head"})
      for (const char* format : {"fp32", "bf16", "int8", "int4"}) expected.push_back({weight, format});
    EXPECT_EQ(names, expected);
  }
}

TEST(BenchProducts, UsesTheShapesOfARank) {
  const auto bytes = [](const char* tp, const char* format) {
    const Words more{"--tp", tp, "--formats", format, "--rows", "1", "--json"};
    const json weight = json::parse(run(products(more)).output)["weights"][0];
    EXPECT_EQ(weight["inputs"], config::preset("tiny").hidden_size);
    return std::pair<int, int>(weight["outputs"], weight["bytes"]);
  };
  const auto [all, all_bytes] = bytes("1", "bf16");
  const auto [half, half_bytes] = bytes("2", "bf16");
  EXPECT_EQ(2 * half, all);
  EXPECT_EQ(2 * half_bytes, all_bytes);
  EXPECT_EQ(all_bytes, 2 * all * config::preset("tiny").hidden_size);
  EXPECT_LT(bytes("1", "int4").second, all_bytes / 3);
}

TEST(BenchProducts, PrintsATable) {
  const std::string table = run(products({"--formats", "bf16", "--rows", "1,2"})).output;
  EXPECT_PRED2(contains, table, "tiny, 2 ranks, ");
  EXPECT_PRED2(contains, table, "\nqkv_proj ");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 8) << table;
}

TEST(BenchProducts, ValidationErrors) {
  expect_refused(products({"--tp", "0"}), {"bench products: --tp must be from 1 to 240; got 0"});
  expect_refused(products({"--tp", "9"}), {"bench products: ", "got 9"});
  expect_refused(products({"--rows", "1,"}), {"bench products: --rows must be an integer", "''"});
  expect_refused(products({"--rows", "0"}), {"bench products: --rows must be from 1 to 16384; got 0"});
  expect_refused(products({"--formats", "bf16,fp8"}), {"--formats must be one of", "got fp8"});
  expect_refused(
      products({"--weights", "gate"}),
      {"--weights must list some of qkv_proj, o_proj, gate_up_proj, down_proj, lm_head; got 'gate'"});
  expect_refused(products({"--group-size", "48"}), {"bench products: --group-size", "got 48"});
  expect_refused(products({"--preset", "huge"}), {"huge"});
  expect_refused(products({"--seconds", "0"}), {"bench products: --seconds must be above 0", "got 0"});
}

/// Sets XDG_CACHE_HOME to a temporary directory, also for started programs.
class BenchProductsTune : public ::testing::Test {
 protected:
  BenchProductsTune() { environment_.set("XDG_CACHE_HOME", scratch_.path()); }
  const Scratch scratch_;
  testing::Environment environment_;
};

/// Returns what computes the fp32 products of two weights, by rank processes started for this.
json codes() {
  json codes;
  const Words argv = products({"--tp", "2", "--formats", "fp32", "--rows", "2048", "--json"});
  const json found = json::parse(run(argv).output);
  for (const json& weight : found["weights"]) codes.push_back(weight["products"][0]["code"]);
  return codes;
}

TEST_F(BenchProductsTune, SavesTheFastestLibraryForLaterRuns) {
  const json tuned =
      json::parse(run(products({"--tune", "--tp", "2", "--rows", "64,2048", "--json"})).output);
  json expected, fastest;
  for (const char* weight : {"qkv_proj", "lm_head"}) {
    for (const int rows : {64, 2048}) {
      for (const char* form : {"forward", "input_gradient", "weight_gradient"})
        expected.push_back({weight, form, rows});
    }
  }
  json products;
  for (const json& product : tuned["products"]) {
    const bool is_weight_gradient = product["product"] == "weight_gradient";
    products.push_back({product["weight"], product["product"], product[is_weight_gradient ? "k" : "m"]});
    std::string best;
    double least = INFINITY;
    for (const auto library : kernels::product_libraries()) {
      const double median = product["libraries"].at(name(library))["median_us"];
      EXPECT_GT(median, 0) << product;
      if (median < least) best = name(library);
      least = std::min(least, median);
    }
    EXPECT_EQ(product["libraries"].size(), kernels::product_libraries().size());
    EXPECT_EQ(product["fastest"], best) << product;
    if (product["product"] == "forward" && product["m"] == 2048) fastest.push_back(product["fastest"]);
  }
  EXPECT_EQ(products, expected);
  EXPECT_EQ(tuned["file"], kernels::product_choice_file());
  EXPECT_EQ(codes(), fastest);
}

TEST_F(BenchProductsTune, LaterRunsUseWhatWasSaved) {
  using enum kernels::ProductForm;
  for (const auto library : kernels::product_libraries()) {
    kernels::save_product_choice({{{forward, 1, 1, 1}, library}});
    EXPECT_EQ(codes(), json({name(library), name(library)}));
  }
}

TEST_F(BenchProductsTune, PrintsATable) {
  const std::string text = run(products({"--tune", "--rows", "64"})).output;
  EXPECT_PRED2(contains, text, "tiny, 2 ranks, fp32, ");
  EXPECT_PRED2(contains, text, "torch.mm ms");
  EXPECT_PRED2(contains, text, "\nqkv_proj ");
  EXPECT_PRED2(contains, text, "\nsaved for later runs in " + scratch_.path());
}

TEST_F(BenchProductsTune, ValidationErrors) {
  expect_refused(products({"--tune", "--formats", "bf16"}), {"--tune needs neither", "got --formats"});
  expect_refused(products({"--tune", "--group-size", "32"}), {"--tune needs neither", "got --group-size"});
  expect_refused(products({"--tune", "--activations", "int8"}),
                 {"--tune needs neither", "got --activations"});
  environment_.set("XDG_CACHE_HOME", "/proc/none");
  const Outcome unwritable = call(products({"--tune", "--seconds", "3600"}));  // refused before it measures
  EXPECT_NE(unwritable.code, 0);
  EXPECT_PRED2(contains, unwritable.errors, "/proc/none");
  environment_.set("XDG_CACHE_HOME", std::nullopt);
  environment_.set("HOME", std::nullopt);
  expect_refused(products({"--tune"}), {"--tune needs an absolute path in XDG_CACHE_HOME or HOME"});
}

}  // namespace
}  // namespace shardwise::cli::bench_products_test

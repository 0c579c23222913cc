// `shardwise bench step`: times, counted operations, the profile, and usage errors.
#include "tests/cli/trained_model.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::bench_step_test {
namespace {

/// 3 layers: q and o 8·8, k and v 4·8, gate, up and down 12·8 each; a head of 20·8, tied to the embedding or
/// not.
std::string shape(bool is_tied) {
  return json{{"model_type", "llama"},
              {"vocab_size", 20},
              {"hidden_size", 8},
              {"head_dim", 4},
              {"intermediate_size", 12},
              {"num_hidden_layers", 3},
              {"num_attention_heads", 2},
              {"num_key_value_heads", 1},
              {"max_position_embeddings", 16},
              {"rms_norm_eps", 1e-5},
              {"tie_word_embeddings", is_tied}}
      .dump();
}

Words step(const std::string& config, const Words& more) {
  Words argv{"bench",     "step", "--model-config", config, "--seconds", "0.01",
             "--seq-len", "10",   "--batch-size",   "3"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

class BenchStep : public ::testing::Test {
 protected:
  const test::TemporaryDirectory scratch_;
  const std::string config_ = scratch_.put("config.json", shape(/*is_tied=*/false));
};

/// Six operations for each element of a weight and token: two for y, dX and dW each.
TEST_F(BenchStep, CountsTheOperationsOfProductsWithWeights) {
  const int64_t elements = 3 * (2 * 8 * 8 + 2 * 4 * 8 + 3 * 12 * 8) + 20 * 8;
  const std::string tied = scratch_.put("tied.json", shape(/*is_tied=*/true));
  for (const std::string& config : {config_, tied}) {
    const json one = json::parse(run(step(config, {"--tp", "1", "--json"})).output);
    ASSERT_EQ(one["dtypes"].size(), 2u);
    for (const json& of : one["dtypes"]) EXPECT_EQ(of["product_operations"], 6 * elements * 10 * 3);
  }
}

TEST_F(BenchStep, ReportsTimesOfEveryDtypeOnTwoRanks) {
  for (const char* parallel : {"--sequence-parallel", "--no-sequence-parallel"}) {
    const json found = json::parse(run(step(config_, {"--tp", "2", parallel, "--json"})).output);
    EXPECT_EQ(found["tp"], 2);
    EXPECT_NE(found["cpu"], "");
    std::vector<std::string> dtypes;
    for (const json& of : found["dtypes"]) {
      dtypes.push_back(of["dtype"]);
      EXPECT_GT(of["step"]["best_us"].get<double>(), 0);
      EXPECT_LE(of["step"]["best_us"], of["step"]["median_us"]);
      EXPECT_GT(of["arithmetic"]["time"]["best_us"].get<double>(), 0);
      EXPECT_GE(of["repetitions"], 5);
      EXPECT_LT(of["loss"].get<double>(), 3.1);  // steps train: log 20 is 3.0
    }
    EXPECT_EQ(dtypes, (std::vector<std::string>{"fp32", "bf16"}));
  }
}

TEST_F(BenchStep, PrintsATableAndTheProfile) {
  const std::string file = scratch_ / "trace.json";
  const Outcome outcome = run(step(config_, {"--tp", "2", "--dtypes", "bf16", "--profile", file}));
  EXPECT_PRED2(contains, outcome.output, "2 ranks with sequence parallelism, 3 x 10 tokens");
  EXPECT_PRED2(contains, outcome.output, "\nbf16 ");
  EXPECT_PRED2(contains, outcome.errors, "mean of 3 profiled steps");
  EXPECT_GT(json::parse(test::contents(file))["traceEvents"].size(), 100u);
}

TEST_F(BenchStep, ValidationErrors) {
  expect_refused(step(config_, {"--seq-len", "17"}), {"bench step: --seq-len must be from 1 to 16; got 17"});
  expect_refused(step(config_, {"--batch-size", "0"}), {"bench step: --batch-size", "got 0"});
  expect_refused(step(config_, {"--dtypes", "fp16"}), {"--dtypes must be one of", "got fp16"});
  expect_refused(step(config_, {"--tp", "3"}), {"bench step: ", "got 3"});
  expect_refused(step(config_, {"--recompute", "some"}), {"--recompute", "some"});
  expect_refused(step(config_, {"--preset", "tiny"}), {"--preset and --model-config are mutually exclusive"});
  expect_refused(step(config_, {"--profile", scratch_ / "trace.json"}),
                 {"--profile records one dtype; got --dtypes fp32,bf16"});
  expect_refused(step(config_, {"--dtypes", "fp32", "--profile", scratch_.path()}),
                 {"--profile must be a file"});
}

}  // namespace
}  // namespace shardwise::cli::bench_step_test

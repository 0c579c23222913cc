// `shardwise profile mlp` and `profile block`: counts, the model, the comparison of outputs, and usage
// errors. Times are never compared with a limit.
#include "tests/cli/trained_model.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::profile_part_test {
namespace {

Words profile(const std::string& what, Words more) {
  Words argv{"profile", what};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

/// Measured shortly, in JSON.
json measured(const std::string& what, Words more) {
  more.insert(more.end(), {"--seconds", "0.01", "--json"});
  return json::parse(run(profile(what, more)).output);
}

json modeled(const std::string& what, const Words& more) {
  Words argv = profile(what, more);
  argv.insert(argv.end(), {"--machine", "a100", "--json"});
  const Outcome outcome = call(argv);
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  return json::parse(outcome.output);
}

/// Expects that counters and parameters of a run say what plan/ computes.
void expect_counts_as_planned(const std::string& what, const Words& flags) {
  const json run = measured(what, flags), plan = modeled(what, flags);
  ASSERT_EQ(run["rows"].size(), plan["rows"].size());
  for (size_t i = 0; i < run["rows"].size(); ++i) {
    for (const char* field : {"ranks", "hidden", "ffn", "weight_bytes", "flop", "sent_bytes"})
      EXPECT_EQ(run["rows"][i][field], plan["rows"][i][field]) << field << flags.back();
  }
}

TEST(ProfileMlp, CountsAreThoseOfTheModel) {
  const Words base{"--ranks", "1,2,3", "--hidden", "16,24", "--rows", "12", "--dtype"};
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const Words& more : {Words{}, {"--backward"}, {"--sequence-parallel"}, {"--gated", "--ffn", "36"}}) {
      Words flags = base;
      flags.push_back(dtype);
      flags.insert(flags.end(), more.begin(), more.end());
      expect_counts_as_planned("mlp", flags);
    }
  }
  expect_counts_as_planned("mlp", {"--ranks", "2", "--hidden", "16", "--seq-len", "6", "--batch-size", "3",
                                   "--sequence-parallel", "--backward"});
}

TEST(ProfileBlock, CountsAreThoseOfTheModel) {
  const test::TemporaryDirectory scratch;
  config::Config config = config::preset("tiny");
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  const std::string file = scratch.put("config.json", config::to_json(config));
  for (const Words& more : {Words{}, {"--backward"}, {"--sequence-parallel", "--backward"}}) {
    Words flags{"--model", file, "--ranks", "1,2,4", "--seq-len", "8", "--batch-size", "2"};
    flags.insert(flags.end(), more.begin(), more.end());
    expect_counts_as_planned("block", flags);
  }
}

// A rank of two sends rows·hidden elements in an all_reduce: its half of the tensor, in both of its halves.
TEST(ProfileMlp, JsonHasTimesRatiosAndTheFit) {
  const json found =
      measured("mlp", {"--ranks", "1,2", "--hidden", "16,32", "--rows", "12", "--dtype", "fp32"});
  EXPECT_TRUE(found["measured"].get<bool>());
  EXPECT_NE(found["cpu"], "");
  EXPECT_EQ(found["seq_len"], 12);
  ASSERT_EQ(found["rows"].size(), 4u);
  for (const json& row : found["rows"]) {
    const int64_t ranks = row["ranks"], hidden = row["hidden"];
    EXPECT_EQ(row["ffn"], 4 * hidden);
    EXPECT_EQ(row["weight_bytes"], 2 * 4 * hidden * 4 * hidden / ranks);
    EXPECT_EQ(row["flop"], 16 * 12 * hidden * hidden / ranks);
    EXPECT_EQ(row["sent_bytes"], ranks == 1 ? 0 : 12 * hidden * 4);
    const double compute = row["compute_us"], communication = row["communication_us"],
                 together = row["together_us"];
    EXPECT_GT(compute, 0);
    EXPECT_EQ(communication > 0, ranks > 1);
    EXPECT_DOUBLE_EQ(row["ratio"].get<double>(), communication / compute);
    EXPECT_DOUBLE_EQ(row["communication_share"].get<double>(), communication / (compute + communication));
    EXPECT_DOUBLE_EQ(row["rows_per_second_per_rank"].get<double>() * together * double(ranks), 12e6);
    const json& measurement = row["measurement"];
    EXPECT_NEAR(measurement["overlap_us"].get<double>(), compute + communication - together, 1e-6);
    EXPECT_GE(measurement["repetitions"], 5);
    EXPECT_LE(measurement["together"]["lower_quartile_us"], measurement["together"]["upper_quartile_us"]);
    EXPECT_FALSE(row.contains("difference"));
  }
  // Without two cores the rows of two ranks are not fitted.
  const json& fit = found["fit"];
  EXPECT_EQ(fit.is_null(), found["rows"][1]["measurement"]["oversubscribed"].get<bool>());
  if (fit.is_null()) return;
  EXPECT_EQ(fit["held_out_errors"].size(), 2u);
  const double f = fit["flop_per_second"], b = fit["bytes_per_second"];
  for (const json& row : found["rows"]) {
    const double expected = (row["ranks"].get<double>() - 1) / row["hidden"].get<double>() * 4 * f / (8 * b);
    EXPECT_NEAR(row["model_ratio"].get<double>(), expected, 1e-9 * expected);
  }
}

TEST(ProfileMlp, ComparesOutputsWithThoseOfOneRank) {
  for (const Words& more : {Words{"--dtype", "fp32"}, {"--dtype", "bf16"}, {"--sequence-parallel"}}) {
    Words flags{"--compare", "--ranks", "1,2,3", "--hidden", "32", "--ffn", "88", "--rows", "10"};
    flags.insert(flags.end(), more.begin(), more.end());
    const json found = measured("mlp", flags);
    ASSERT_EQ(found["rows"].size(), 3u);
    EXPECT_FALSE(found["rows"][0].contains("difference"));
    for (size_t i = 1; i < 3; ++i) {
      const json& difference = found["rows"][i]["difference"];
      EXPECT_TRUE(difference["within_bound"].get<bool>());
      EXPECT_LE(difference["largest"], difference["bound"]);
      // The outputs are sums of 88 products, and zeros would not pass.
      EXPECT_GT(difference["scale"].get<double>(), 10 * difference["bound"].get<double>());
      EXPECT_GT(difference["scale"].get<double>(), 1e-3);
    }
  }
}

// 3·4096·11008 elements of 4 bytes, which two ranks halve.
TEST(ProfileMlp, ComparesTheDocumentsShapeByDefault) {
  const json found = modeled("mlp", {"--compare", "--ranks", "1,2,4,8"});
  EXPECT_FALSE(found["measured"].get<bool>());
  EXPECT_EQ(found["note"], "by model, not measured");
  EXPECT_EQ(found["machine"], "a100");
  EXPECT_EQ(found["dtype"], "fp32");
  EXPECT_EQ(found["seq_len"], 128);
  EXPECT_EQ(found["batch_size"], 16);
  for (const json& row : found["rows"])
    EXPECT_EQ(row["weight_bytes"], 541'065'216 / row["ranks"].get<int64_t>());
  EXPECT_EQ(found["rows"][0]["speed_up"], 1);
  EXPECT_GT(found["rows"][1]["speed_up"], found["rows"][0]["speed_up"]);
  const std::string text = call(profile("mlp", {"--compare", "--machine", "a100"})).output;
  EXPECT_PRED2(contains, text, "profile mlp, by model, not measured: a100, gated MLP, 16 x 128 tokens, fp32");
  for (const char* weights : {" 541.1\n", " 270.5\n"}) EXPECT_PRED2(contains, text, weights);
}

/// The cells of a table's row, which are separated by two spaces or more.
Words cells_of(const std::string& line) {
  const std::regex gap(" {2,}");
  return {std::sregex_token_iterator(line.begin(), line.end(), gap, -1), std::sregex_token_iterator()};
}

TEST(ProfileMlp, TableAndJsonAgree) {
  const Words flags{"--ranks", "1,2,16", "--hidden", "1024,4096", "--machine", "p4d", "--backward"};
  std::istringstream text(call(profile("mlp", flags)).output);
  Words with_json = flags;
  with_json.emplace_back("--json");
  const json rows = json::parse(call(profile("mlp", with_json)).output)["rows"];
  std::string line;
  std::getline(text, line);
  std::getline(text, line);
  EXPECT_EQ(cells_of(line), (Words{"ranks", "nodes", "hidden", "compute ms", "comm ms", "together ms",
                                   "ratio", "comm share", "speed-up", "rows/s per rank", "MB per rank"}));
  for (const json& row : rows) {
    std::getline(text, line);
    const Words cells = cells_of(line);
    EXPECT_EQ(cells[0], row["ranks"].dump());
    EXPECT_EQ(cells[1], row["nodes"].dump());
    EXPECT_EQ(cells[2], row["hidden"].dump());
    EXPECT_NEAR(std::stod(cells[3]), row["compute_us"].get<double>() / 1e3, 5e-4);
    EXPECT_NEAR(std::stod(cells[4]), row["communication_us"].get<double>() / 1e3, 5e-4);
    EXPECT_NEAR(std::stod(cells[5]), row["together_us"].get<double>() / 1e3, 5e-4);
    EXPECT_NEAR(std::stod(cells[6]), row["ratio"].get<double>(), 5e-5);
    EXPECT_NEAR(std::stod(cells[7]) / 100, row["communication_share"].get<double>(), 5e-4);
    EXPECT_NEAR(std::stod(cells[8]), row["speed_up"].get<double>(), 5e-3);
    EXPECT_NEAR(std::stod(cells[9]), row["rows_per_second_per_rank"].get<double>(), 0.5);
    EXPECT_NEAR(std::stod(cells[10]), row["weight_bytes"].get<double>() / 1e6, 0.05);
    EXPECT_EQ(row["nodes"], row["ranks"] == 16 ? 2 : 1);
  }
  EXPECT_FALSE(std::getline(text, line)) << line;
}

TEST(ProfileMlp, PrintsATable) {
  const std::string text = run(profile("mlp", {"--compare", "--ranks", "1,2", "--hidden", "16", "--rows", "8",
                                               "--seconds", "0.01"}))
                               .output;
  for (const char* part : {"profile mlp: gated MLP, 1 x 8 tokens, fp32, forward", "overlap ms", "model ratio",
                           "difference  bound", "\n1 ", "\n2 "})
    EXPECT_PRED2(contains, text, part);
}

TEST(ProfileBlock, OfADescribedMachineGoesAcrossItsNodes) {
  const json found = modeled("block", {"--model", "llama-3.1-70b", "--seq-len", "2048", "--batch-size", "1"});
  std::vector<int> ranks, nodes;
  for (const json& row : found["rows"]) {
    ranks.push_back(row["ranks"]);
    nodes.push_back(row["nodes"]);
  }
  EXPECT_EQ(ranks, (std::vector<int>{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(nodes, (std::vector<int>{1, 1, 1, 1, 2, 4}));
}

TEST(ProfileBlock, TheLargestBatchIsThatOfAStepOfTheModel) {
  const Words shape{"--model",   "llama-3.2-1b", "--ranks", "1,2,8",
                    "--seq-len", "1024",         "--dtype", "bf16",
                    "--largest", "--memory-cap", "24",      "--sequence-parallel"};
  const json block = modeled("block", shape), step = modeled("step", shape);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(block["rows"][i]["largest_batch"],
              i == 0 ? 0 : block["rows"][i - 1]["largest_batch"].get<int>());
    EXPECT_EQ(block["rows"][i]["largest_batch"], step["rows"][i]["largest_batch"]);
  }
  Words argv = profile("block", shape);
  argv.insert(argv.end(), {"--machine", "a100"});
  const std::string text = call(argv).output;
  EXPECT_PRED2(contains, text, "MB per rank  largest batch\n");
  EXPECT_PRED2(contains, text, "in 24.0 GB of a rank\n");
  expect_refused(profile("block", {"--memory-cap", "2"}),
                 {"profile block: --memory-cap needs --largest; got 2 alone"});
}

TEST(ProfileMlp, RefusesBadInput) {
  const auto refused = [](const Words& flags, const Words& named) {
    expect_refused(profile("mlp", flags), named);
  };
  refused({"--ranks", "0"}, {"profile mlp: --ranks must be from 1 to 240; got 0"});
  refused({"--ranks", "2,1"}, {"profile mlp: --ranks must be ascending; got 2,1"});
  refused({"--ranks", "2,2"}, {"--ranks must be ascending"});
  refused({"--ranks", "1,9", "--hidden", "8", "--ffn", "8"}, {"--ranks of an MLP of 8 features", "got 9"});
  refused({"--hidden", "0"}, {"--hidden must be from 1 to", "got 0"});
  refused({"--hidden", "8,"}, {"--hidden", "got ''"});
  refused({"--rows", "0"}, {"--rows must be from 1 to", "got 0"});
  refused({"--rows", "8", "--seq-len", "4"},
          {"--rows and --seq-len with --batch-size are mutually exclusive"});
  refused({"--dtype", "fp16"}, {"--dtype must be one of fp32, bf16; got fp16"});
  refused({"--machine", "abacus"}, {"profile mlp: --machine must be a file or one of a100", "got abacus"});
  refused({"--machine", "a100", "--seconds", "1"},
          {"--machine computes, and measures nothing; got --seconds"});
  refused({"--machine", "a100", "--timeout", "9"}, {"got --timeout"});
  refused({"--compare", "--ranks", "2"}, {"--compare needs --ranks that begin with 1; got 2"});
  refused({"--seconds", "0"}, {"--seconds must be above 0"});
  expect_refused({"profile"}, {"profile: the first argument must be products, mlp, block or step; got none"});
  expect_refused({"profile", "stp"}, {"got stp"});
}

TEST(ProfileBlock, RefusesBadInput) {
  const auto refused = [](const Words& flags, const Words& named) {
    expect_refused(profile("block", flags), named);
  };
  refused({"--model", "gpt2", "--ranks", "1,5"}, {"--ranks must divide the 12 query heads", "got 5"});
  refused({"--model", "gpt2", "--ranks", "24"}, {"the 12 query heads", "got 24"});
  refused({"--model", "nosuch"}, {"profile block: --model must be a directory or file", "got nosuch"});
  refused({"--model", "gpt2", "--seq-len", "1025"}, {"--seq-len must be from 1 to 1024; got 1025"});
  refused({"--batch-size", "0"}, {"--batch-size", "got 0"});
  refused({"--seq-len", "256", "--batch-size", "65537"}, {"--batch-size must be from 1 to 65536; got 65537"});
}

}  // namespace
}  // namespace shardwise::cli::profile_part_test

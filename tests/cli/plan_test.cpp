// `shardwise plan`: the table and the JSON.
#include <regex>

#include "shardwise/plan/machine_file.h"
#include "tests/cli/call.h"

namespace shardwise::cli::plan_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Outcome plan(const Words& more) {
  Words argv{"plan"};
  argv.insert(argv.end(), more.begin(), more.end());
  return call(argv);
}

TEST(Plan, PrintsTheFastestPlanOfEveryCombinationOfAxes) {
  const Outcome found =
      plan({"--model", "llama-3.1-70b", "--ranks", "64", "--batch-size", "128", "--seq-len", "2048"});
  EXPECT_EQ(found.code, 0) << found.errors;
  EXPECT_EQ(found.errors, "");
  EXPECT_EQ(found.output.find(
                "plan: llama-3.1-70b, 70.55B parameters, 64 x h100 in 8 nodes; a step of 128 x "
                "2048 tokens in bf16; 2 + 4 + 12 bytes a parameter (weights, gradients, optimizer)\n"),
            0u)
      << found.output;
  for (const char* part : {"tp  cp  pp  dp  sp   zero", "MFU     HFU", "step ms", "plans fit",
                           "refused:\n  tp 1 cp 1 pp 2 dp 32: stage 0 needs"})
    EXPECT_NE(found.output.find(part), std::string::npos) << part << "\n" << found.output;
}

TEST(Plan, JsonHasEveryPlanAndEveryRefusal) {
  const Outcome found = plan({"--model", "llama-3.1-8b", "--ranks", "8", "--tp", "2", "--batch-size", "16",
                              "--dtype", "float32", "--machine", "h200", "--json"});
  ASSERT_EQ(found.code, 0) << found.errors;
  const json report = json::parse(found.output);
  EXPECT_EQ(report["machine"], "h200");
  EXPECT_EQ(report["devices_per_node"], 8);
  EXPECT_EQ(report["layers"], 32);
  EXPECT_EQ(report["parameters"], 8'030'261'248);
  EXPECT_EQ(report["element_bytes"], 4);
  EXPECT_EQ(report["state_bytes"], json({{"weights", 4}, {"gradients", 4}, {"optimizer", 8}}));
  EXPECT_EQ(report["usable_bytes"], 141'000'000'000 - (int64_t{4} << 30));
  ASSERT_GT(report["plans"].size(), 0u);
  for (const json& one : report["plans"]) {
    EXPECT_EQ(one["degrees"]["tp"], 2);
    int64_t bytes = 0;
    for (const char* part : {"weights", "gradients", "optimizer", "activations", "buffers"})
      bytes += one["memory_bytes"][part].get<int64_t>();
    EXPECT_EQ(bytes, one["memory_bytes"]["total"]);
    EXPECT_NEAR(one["tokens_per_second"].get<double>() * one["seconds"]["total"].get<double>(), 16 * 4096,
                1e-6 * 16 * 4096);
    EXPECT_LT(one["hardware_utilization"].get<double>(), 1);
    EXPECT_LT(one["utilization"], one["hardware_utilization"]);
    EXPECT_LT(one["utilization_of_visible_keys"], one["utilization"]);
    EXPECT_LE(one["memory_bytes"]["total"], report["usable_bytes"]);
  }
  for (const json& one : report["refused"]) {
    EXPECT_NE(one["reason"], "");
    const bool is_of_memory = one["reason"].get<std::string>().find(" GB of ") != std::string::npos;
    EXPECT_EQ(one["needed_bytes"] > report["usable_bytes"], is_of_memory) << one;
  }
}

TEST(Plan, ExplainsTheFirstAgainstTheSecondByTheirParts) {
  const Words common = {"--model", "llama-3.1-70b", "--ranks", "64", "--batch-size", "128", "--rows", "2"};
  Words words = common;
  words.push_back("--why");
  const std::string text = plan(words).output, line = text.substr(text.rfind("why: "));
  words = common;
  words.push_back("--json");
  const json plans = json::parse(plan(words).output)["plans"];
  const auto axes = [](const json& one) {
    const json& d = one["degrees"];
    return "tp " + d["tp"].dump() + " cp " + d["cp"].dump() + " pp " + d["pp"].dump() + " dp " +
           d["dp"].dump();
  };
  const json& first = plans.at(0);
  const auto second =
      std::find_if(plans.begin(), plans.end(), [&](const json& one) { return axes(one) != axes(first); });
  ASSERT_NE(second, plans.end());
  EXPECT_EQ(line.find("why: " + axes(first) + " takes "), 0u) << line;
  EXPECT_NE(line.find("less than " + axes(*second) + ": "), std::string::npos) << line;
  // The parts add up to the difference.
  const std::regex part("([0-9.]+) ms (less|more) in ");
  double sum = 0;
  for (std::sregex_iterator it(line.begin(), line.end(), part), end; it != end; ++it)
    sum += std::stod((*it)[1]) * ((*it)[2] == "less" ? 1 : -1);
  const double difference =
      (*second)["seconds"]["total"].get<double>() - first["seconds"]["total"].get<double>();
  EXPECT_NEAR(sum, difference * 1e3, 0.5);  // eight roundings
}

TEST(Plan, ConventionsOverlapAndAlgorithmsChangeTheirParts) {
  const auto best = [](const Words& more) {
    Words words{"--model", "llama-3.1-8b",       "--ranks", "16",          "--tp", "16", "--pp", "1",
                "--json",  "--micro-batch-size", "1",       "--recompute", "none"};
    words.insert(words.end(), more.begin(), more.end());
    const json report = json::parse(plan(words).output);
    for (const json& one : report["plans"])
      if (one["degrees"]["sequence_parallel"]) return one;
    return json();
  };
  const json plain = best({}), narrow = best({"--gradient-dtype", "bfloat16"}),
             alone = best({"--overlap", "off"}), tree = best({"--algorithm", "tree"}),
             shots = best({"--algorithm", "two-shot", "--overlap", "off"});
  const auto of = [](const json& one, const char* group, const char* part) {
    return one[group][part].get<double>();
  };
  EXPECT_EQ(of(narrow, "memory_bytes", "gradients"), of(plain, "memory_bytes", "gradients") / 2);
  EXPECT_EQ(of(narrow, "memory_bytes", "weights"), of(plain, "memory_bytes", "weights"));
  EXPECT_LT(of(plain, "seconds", "tensor_parallel"), of(alone, "seconds", "tensor_parallel"));
  EXPECT_EQ(of(plain, "seconds", "compute"), of(alone, "seconds", "compute"));
  EXPECT_NE(of(tree, "seconds", "tensor_parallel"), of(plain, "seconds", "tensor_parallel"));
  EXPECT_NE(of(shots, "seconds", "tensor_parallel"), of(alone, "seconds", "tensor_parallel"));
}

TEST(Plan, EndsWithOneIfNothingFits) {
  const Outcome found = plan({"--model", "llama-3.1-405b", "--ranks", "8"});
  EXPECT_EQ(found.code, 1);
  EXPECT_NE(found.output.find("0 plans fit"), std::string::npos) << found.output;
  EXPECT_NE(found.output.find("stage 0 needs"), std::string::npos) << found.output;
}

TEST(PlanInference, PrintsEverySplitThatFits) {
  const Outcome found = plan(
      {"--task", "infer", "--model", "llama-3.1-70b", "--ranks", "8", "--batch-size", "16", "--pp", "1"});
  EXPECT_EQ(found.code, 0) << found.errors;
  EXPECT_EQ(found.errors, "");
  for (const char* part :
       {"plan: llama-3.1-70b, 70.55B parameters in bf16, 8 x h100; 16 texts of 512 + 128 tokens\n",
        "tp  replicas", "3 plans fit, 1 do not\nrefused:\n  tp 1 replicas 8: a rank needs"})
    EXPECT_NE(found.output.find(part), std::string::npos) << part << "\n" << found.output;
  EXPECT_EQ(plan({"--task", "infer", "--model", "llama-3.1-405b", "--ranks", "1"}).code, 1);
}

TEST(PlanInference, PrintsStagesAndSharesOfExpertsThatPlansHave) {
  const Words words{"--task", "infer", "--model", "mixtral-8x7b", "--ranks", "8", "--batch-size", "16"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), words.begin(), words.end());
    return plan(more);
  };
  const std::string all = with({"--rows", "1000"}).output;
  for (const char* part :
       {"plan: mixtral-8x7b, 46.70B parameters in bf16, 8 x h100; 16 texts", "tp  pp  ep  replicas",
        "of it tp  of it ep  of it pp  pipelined ms  tokens/s", "\n  tp 1 replicas 8: a rank needs"})
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
  const std::string pinned = with({"--pp", "1", "--ep", "1", "--rows", "2"}).output;
  EXPECT_EQ(pinned.find("pipelined"), std::string::npos) << pinned;
  EXPECT_NE(pinned.find("\ntp  replicas  GB"), std::string::npos) << pinned;
  const std::string short_list = with({"--rows", "1", "--memory-cap", "30"}).output;
  EXPECT_NE(short_list.find(" more splits\n"), std::string::npos) << short_list;
  const json found = json::parse(with({"--tp", "2", "--pp", "2", "--ep", "4", "--json"}).output);
  ASSERT_EQ(found["plans"].size(), 1u);
  const json& one = found["plans"][0];
  EXPECT_EQ(one["degrees"], (json{{"tp", 2}, {"pp", 2}, {"ep", 4}, {"replicas", 2}}));
  for (const char* part : {"expert_parallel", "pipeline"}) EXPECT_GT(one["token_seconds"][part], 0) << part;
  const double token =
      std::min(one["token_seconds"]["total"].get<double>(), one["pipelined_token_seconds"].get<double>());
  EXPECT_NEAR(one["seconds"].get<double>(), one["prompt_seconds"]["total"].get<double>() + 127 * token, 1e-9);
  EXPECT_NEAR(one["tokens_per_second"].get<double>() * token, 16, 1e-9);
  EXPECT_TRUE(
      json::parse(with({"--pp", "1", "--json"}).output)["plans"][0]["pipelined_token_seconds"].is_null());
}

// 61 blocks cache 576 features of a token in two bytes each, on every rank of tp.
TEST(PlanInference, PlansLatentAttention) {
  const json found = json::parse(plan({"--task", "infer", "--model", "deepseek-v3", "--ranks", "32", "--tp",
                                       "8", "--pp", "1", "--batch-size", "8", "--machine", "h200", "--json"})
                                     .output);
  EXPECT_EQ(found["parameters"], 671'026'419'200);
  ASSERT_GT(found["plans"].size(), 0u);
  for (const json& one : found["plans"]) EXPECT_EQ(one["memory_bytes"]["cache"], 2 * 640 * 70'272);
}

TEST(PlanInference, QuantizesAsAsked) {
  const auto weights = [](Words more) {
    Words words{"--task", "infer", "--model", "llama-3.1-8b", "--ranks", "1", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome found = plan(words);
    EXPECT_EQ(found.code, 0) << found.errors;
    const json one = json::parse(found.output)["plans"][0];
    int64_t bytes = 0;
    for (const char* part : {"weights", "cache", "buffers"})
      bytes += one["memory_bytes"][part].get<int64_t>();
    EXPECT_EQ(bytes, one["memory_bytes"]["total"]);
    EXPECT_NEAR(
        one["prompt_seconds"]["total"].get<double>() + 127 * one["token_seconds"]["total"].get<double>(),
        one["seconds"].get<double>(), 1e-9);
    return one["memory_bytes"]["weights"].get<int64_t>();
  };
  const int64_t bf16 = weights({});
  EXPECT_EQ(bf16, 2 * 8'030'261'248);
  EXPECT_EQ(weights({"--dtype", "float32"}), 2 * bf16);
  EXPECT_LT(weights({"--quantize", "int8"}), bf16 * 0.51);
  EXPECT_LT(weights({"--quantize", "int4"}), bf16 * 0.31);
  EXPECT_GT(weights({"--quantize", "int4", "--group-size", "32"}), weights({"--quantize", "int4"}));
  EXPECT_GT(weights({"--quantize", "int4", "--head", "none"}), weights({"--quantize", "int4"}));
}

TEST(Plan, ReadsAMachineFromAFile) {
  const test::TemporaryDirectory scratch;
  const std::string file = scratch.put("machine.json", plan::machine_text(plan::built_in_machine("h200")));
  const auto report = [](const std::string& machine) {
    json found = json::parse(plan({"--model", "llama-3.1-8b", "--ranks", "64", "--batch-size", "64", "--tp",
                                   "8", "--machine", machine, "--json"})
                                 .output);
    return found;
  };
  EXPECT_EQ(report(file), report("h200"));
}

TEST(Plan, FindsTheFewestDevices) {
  const auto ranks = [](Words more) {
    more.insert(more.end(), {"--min-gpus", "--json"});
    const Outcome found = plan(more);
    EXPECT_EQ(found.code, 0) << found.errors;
    return json::parse(found.output)["ranks"].get<int64_t>();
  };
  // Weights of 141 GB in bf16, of 75.7 GB each device; a quarter of that in int4.
  EXPECT_EQ(ranks({"--task", "infer", "--model", "llama-3.1-70b"}), 2);
  EXPECT_EQ(ranks({"--task", "infer", "--model", "llama-3.1-70b", "--quantize", "int4"}), 1);
  EXPECT_EQ(ranks({"--task", "infer", "--model", "llama-3.1-405b"}), 16);
  EXPECT_EQ(ranks({"--task", "infer", "--model", "llama-3.1-70b", "--tp", "4"}), 4);
  // 18 bytes a parameter: 1.27 TB and 7.3 TB. One rank fewer than half of these cannot hold them.
  EXPECT_EQ(ranks({"--model", "llama-3.1-70b"}), 32);
  EXPECT_EQ(ranks({"--model", "llama-3.1-405b"}), 128);
  const test::TemporaryDirectory scratch;
  plan::Machine node = plan::built_in_machine("h100");
  node.across_nodes.reset();
  const std::string file = scratch.put("node.json", plan::machine_text(node));
  EXPECT_EQ(plan({"--model", "llama-3.1-405b", "--min-gpus", "--machine", file}).code, 1);
}

TEST(Plan, ListsTheIndicesThatRanksHold) {
  const Outcome text = plan({"--model", "llama-3.1-8b", "--shapes", "--tp", "8", "--seq-len", "8192"});
  EXPECT_EQ(text.code, 0) << text.errors;
  const std::regex o_proj("o_proj +4096 x 4096 +columns +0:512 +512:1024 +1024:1536 +3584:4096\n"),
      residual("residual stream +8192 x 1 x 4096 +tokens +0:1024 ");
  EXPECT_TRUE(std::regex_search(text.output, o_proj)) << text.output;
  EXPECT_TRUE(std::regex_search(text.output, residual)) << text.output;
  const json found = json::parse(plan({"--model", "llama-3.1-8b", "--shapes", "--tp", "8", "--json"}).output);
  EXPECT_EQ(found["tp"], 8);
  for (const json& tensor : found["tensors"])
    EXPECT_EQ(tensor["ranges"].size(), tensor["dim"].is_null() ? 0u : 8u) << tensor;
}

TEST(Plan, RanksSplitsOfExperts) {
  const Words words{"--model", "mixtral-8x7b", "--ranks", "32", "--batch-size", "64", "--ep", "4"};
  const Outcome text = plan(words);
  EXPECT_EQ(text.code, 0) << text.errors;
  for (const char* part : {"46.70B parameters", "dp  ep  sp", " ep 4: "})
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
  Words as_json = words;
  as_json.push_back("--json");
  const json report = json::parse(plan(as_json).output);
  EXPECT_EQ(report["active_parameters"], 12'879'925'248);
  for (const json& one : report["plans"]) {
    EXPECT_EQ(one["degrees"]["ep"], 4);
    EXPECT_GT(one["seconds"]["expert_parallel"], 0);
    double sum = 0;
    for (const auto& [part, seconds] : one["seconds"].items())
      sum += part == "total" ? 0 : seconds.get<double>();
    EXPECT_NEAR(sum, one["seconds"]["total"].get<double>(), 1e-9);
  }
}

TEST(Plan, FindsTheLargestThatFits) {
  const Words words{"--model", "llama-3.1-8b", "--ranks", "8", "--largest"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), words.begin(), words.end());
    return plan(more);
  };
  const Outcome batch = with({"batch"});
  EXPECT_EQ(batch.code, 0) << batch.errors;
  EXPECT_NE(batch.output.find("sequences of a micro-batch"), std::string::npos) << batch.output;
  EXPECT_NE(batch.output.find("1   8   no   none: one needs "), std::string::npos) << batch.output;
  const json sequences = json::parse(with({"seq", "--recompute", "full", "--json"}).output);
  EXPECT_EQ(sequences["largest"], "sequence_length");
  EXPECT_EQ(sequences["plans"].size(), 7u);
  EXPECT_EQ(sequences["plans"].back()["size"], 131072);
  const json texts = json::parse(with({"kv", "--task", "infer", "--json"}).output);
  for (const json& one : texts["plans"]) EXPECT_EQ(one["cached_tokens"], 640 * one["size"].get<int64_t>());
  EXPECT_EQ(with({"batch", "--memory-cap", "10"}).code, 1);
}

TEST(Plan, ComparesTypicalRunsWithAdvice) {
  const Outcome text = plan({"--matrix"});
  EXPECT_EQ(text.code, 0) << text.errors;
  for (const char* part : {"fastest plan", "Llama 3, arXiv 2407.21783, table 4", "tp 8 pp 8, zero 0"})
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
}

// V = s b h e (t - 1) / t; an all_reduce sends 2V, and SP's backward gathers the column inputs again.
TEST(Plan, ListsWhatABlockSends) {
  Words block{"--model", "llama-3.1-8b", "--shapes", "--tp", "8", "--seq-len", "8192"};
  const Outcome text = plan(block);
  block.push_back("--json");
  const json sent = json::parse(plan(block).output)["block_collectives"];
  const int64_t v = int64_t{8192} * 4096 * 2 * 7 / 8;
  const auto row = [&](bool sp, const char* phase, const char* collective, int calls, int64_t bytes) {
    return json{{"sequence_parallel", sp},
                {"phase", phase},
                {"collective", collective},
                {"calls", calls},
                {"bytes", json(std::vector<int64_t>(8, bytes))}};
  };
  EXPECT_EQ(
      sent,
      (json{row(false, "forward", "all_reduce", 2, 4 * v), row(false, "backward", "all_reduce", 2, 4 * v),
            row(true, "forward", "all_gather", 2, 2 * v), row(true, "forward", "reduce_scatter", 2, 2 * v),
            row(true, "backward", "all_gather", 4, 4 * v),
            row(true, "backward", "reduce_scatter", 2, 2 * v)}));
  EXPECT_TRUE(std::regex_search(text.output, std::regex("TP\\+SP +backward +all_gather +4 +234881024 ")))
      << text.output;
}

// Generation has no backward and no sequence parallelism; fp32 doubles the bytes, and one rank sends nothing.
TEST(Plan, ListsWhatABlockOfATaskSends) {
  const auto sent = [](Words more) {
    for (const char* word : {"--model", "gpt2", "--shapes", "--json"}) more.emplace_back(word);
    return json::parse(plan(more).output)["block_collectives"];
  };
  const json one = sent({"--task", "infer", "--tp", "2", "--prompt-tokens", "8", "--dtype", "float32"});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0]["phase"], "forward");
  EXPECT_EQ(one[0]["bytes"][1], 2 * 2 * (8 * 768 * 4) / 2);
  EXPECT_EQ(sent({"--tp", "1"}), json::array());
}

TEST(Plan, ChecksPublishedFigures) {
  const Outcome text = plan({"--check"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.output.find("134 of 134 figures are in their bands\n"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("arXiv 2205.05198, table 5"), std::string::npos) << text.output;
  const json figures = json::parse(plan({"--check", "--json"}).output)["figures"];
  ASSERT_EQ(figures.size(), 134u);
  for (const json& figure : figures) EXPECT_TRUE(figure["in_band"].get<bool>()) << figure;
}

}  // namespace
}  // namespace shardwise::cli::plan_test

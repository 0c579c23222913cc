// The memory that `generate` measures on each rank, against the planned memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/isa.h"
#include "shardwise/config/config.h"
#include "tests/launch/program.h"
#include "tests/support/covering.h"
#include "tests/support/extent.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::generate_memory_test {
namespace {

using nlohmann::json;
using testing::Program;

// Tolerance of the plan, which omits small vectors and the workspace of GEMMs.
constexpr double kTolerance = 0.05;

json llama() {
  return {{"model_type", "llama"},    {"hidden_size", 256},
          {"intermediate_size", 688}, {"num_hidden_layers", 3},
          {"num_attention_heads", 8}, {"num_key_value_heads", 4},
          {"vocab_size", 1000},       {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5},     {"tie_word_embeddings", false},
          {"hidden_act", "silu"}};
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

json config_of(const std::string& family) {
  if (family == "llama") return llama();
  if (family == "qwen3, few KV heads")
    return with(llama(), {{"model_type", "qwen3"}, {"head_dim", 64}, {"num_key_value_heads", 2}});
  if (family == "wide vocabulary, tied")
    return with(llama(), {{"vocab_size", 20000}, {"tie_word_embeddings", true}});
  return {{"model_type", "gpt2"}, {"n_embd", 256},       {"n_layer", 3},
          {"n_head", 8},          {"n_positions", 2048}, {"vocab_size", 999},
          {"bos_token_id", 0},    {"eos_token_id", 0},   {"activation_function", "gelu_new"}};
}

std::vector<std::string> ids(int64_t count) {
  std::string list = "5";
  while (--count > 0) list += ",5";
  return {"--prompt-ids", list};
}

/// Returns the flags of a workload by name: workloads in which activations, caches or weights dominate.
std::vector<std::string> flags_of(const std::string& name) {
  std::vector<std::string> flags = {"--ignore-eos", "--max-new-tokens"};
  const auto append = [&](std::vector<std::string> more) {
    flags.insert(flags.end(), more.begin(), more.end());
  };
  if (name == "a long prompt in chunks") append({"8", "--chunk", "512"}), append(ids(1500));
  if (name == "a long prompt with an int8 cache")
    append({"8", "--chunk", "512", "--kv-cache-dtype", "int8"}), append(ids(1500));
  if (name == "four sequences with int8 caches")
    append({"100", "--num-return", "4", "--temperature", "1", "--kv-cache-dtype", "int8"}), append(ids(200));
  if (name == "four sequences") append({"100", "--num-return", "4", "--temperature", "1"}), append(ids(200));
  if (name == "a short prompt") append({"60"}), append(ids(2));
  if (name == "drafted tokens") append({"200", "--speculate", "15"}), append(ids(2));
  return flags;
}

const std::vector<std::string> kFamilies{"llama", "qwen3, few KV heads", "wide vocabulary, tied", "gpt2"};
const std::vector<std::string> kRanks{"1", "2", "3"};
const std::vector<std::string> kStages{"1", "2", "3", "2 of 1 and 2 layers"};
const std::vector<std::string> kDtypes{"fp32", "bf16"};
const std::vector<std::string> kWorkloads{"a long prompt in chunks",
                                          "four sequences",
                                          "a short prompt",
                                          "drafted tokens",
                                          "a long prompt with an int8 cache",
                                          "four sequences with int8 caches"};

testing::Space space() {
  testing::Space space;
  space.add("family", kFamilies);
  space.add("ranks", kRanks);
  space.add("dtype", kDtypes);
  space.add("workload", kWorkloads);
  space.add("stages", kStages);
  return space;
}

/// Runs generate with random weights and returns its --json document, which begins with the planned memory;
/// generate prints it before the run too.
json generated(const json& config, const std::string& ranks, const std::string& dtype,
               const std::string& workload, const std::string& stages = "1") {
  const test::TemporaryDirectory scratch;
  base::write_text(scratch / "config.json", config.dump());
  std::vector<std::string> argv{
      SHARDWISE_PROGRAM, "generate", "--model", scratch.path(), "--load-format",    "dummy", "--tp", ranks,
      "--dtype",         dtype,      "--json",  "--pp",         stages.substr(0, 1)};
  if (stages.size() > 1) argv.insert(argv.end(), {"--pp-layers", "1,2"});
  const std::vector<std::string> flags = flags_of(workload);
  argv.insert(argv.end(), flags.begin(), flags.end());
  Program program(argv, {.environment = {"SHARDWISE_THREADS=1"}});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
  EXPECT_LT(program.errors().find("generate: planned peak memory: "),
            program.errors().find("generate: prefill"))
      << program.errors();
  EXPECT_EQ(program.output().find("{\"expected_memory\":"), 0u);
  return json::parse(program.output());
}

/// Messages of this size are not planned: a rank's best candidates, and counters.
constexpr double kMessages = 4096;

/// Checks one rank's planned memory, its private and its shared part, and returns by how much the sum is off.
double checked_rank(const json& planned, const json& memory, double tolerance) {
  const size_t rank = planned["rank"];
  const double shared = planned["symmetric_heap_bytes"], all = planned["bytes"],
               measured_shared = memory["peak_symmetric_heap_bytes"][rank],
               measured = memory["peak_bytes"][rank];
  EXPECT_EQ(all, planned["private_bytes"].get<double>() + shared);
  EXPECT_EQ(all, memory["expected_peak_bytes"][rank].get<double>());
  EXPECT_EQ(measured, memory["peak_private_bytes"][rank].get<double>() + measured_shared);
  EXPECT_NEAR(measured_shared, shared, tolerance * shared + kMessages) << "shared, rank " << rank;
  EXPECT_LT(std::abs(measured / all - 1), tolerance) << "rank " << rank << ": " << measured << " for " << all;
  return std::abs(measured / all - 1);
}

/// Returns by how much the plan of the rank that differs most is off.
double checked(const json& document, const std::string& ranks, double tolerance) {
  double largest = 0;
  EXPECT_EQ(document["expected_memory"].size(), std::stoul(ranks));
  for (const json& rank : document["expected_memory"])
    largest = std::max(largest, checked_rank(rank, document["memory"], tolerance));
  return largest;
}

TEST(GenerateMemory, MatchesThePlan) {
  const testing::Space all = space();
  const auto combinations =
      testing::is_full() ? all.all() : testing::covering(all, /*strength=*/2, /*seed=*/1);
  double largest = 0;
  for (const testing::Combination& at : combinations) {
    SCOPED_TRACE(all.name(at));
    const json document = generated(config_of(kFamilies[at[0]]), kRanks[at[1]], kDtypes[at[2]],
                                    kWorkloads[at[3]], kStages[at[4]]);
    const int ranks = std::stoi(kRanks[at[1]]) * std::stoi(kStages[at[4]]);
    largest = std::max(largest, checked(document, std::to_string(ranks), kTolerance));
  }
  std::printf("covered: %zu runs of generate, memory within %.1f %% of the plan\n", combinations.size(),
              largest * 100);
}

/// Checks what a rank is planned to need beside its weights. Returns by how much it is off.
double checked_beside_weights(const json& document, size_t rank) {
  // The workspace of products is planned for AMX only.
  const double workspace = base::best_isa() >= base::Isa::amx ? 0 : 512 << 10;
  const double weights = document["load"]["weight_bytes"][rank],
               measured = document["memory"]["peak_bytes"][rank].get<double>() - weights,
               planned = document["expected_memory"][rank]["bytes"].get<double>() - weights;
  EXPECT_NEAR(measured, planned, 0.01 * planned + workspace);
  return std::abs(measured / planned - 1);
}

// At a published width the plan omits next to nothing, whether the layers need most or the head.
TEST(GenerateMemory, MatchesThePlanOfAFullWidth) {
  json config = json::parse(config::to_json(config::preset("llama-3.2-1b")));
  for (const int64_t vocabulary : {256, 40'000}) {
    config.update({{"num_hidden_layers", 1}, {"vocab_size", vocabulary}});
    for (const std::string& workload : kWorkloads) {
      SCOPED_TRACE(workload + ", " + std::to_string(vocabulary) + " tokens");
      const json document = generated(config, "2", "bf16", workload);
      checked(document, "2", /*tolerance=*/0.005);
      double off = 0;
      for (size_t rank = 0; rank < 2; ++rank) off = std::max(off, checked_beside_weights(document, rank));
      std::printf("memory beside the weights within %.2f %% of the plan\n", off * 100);
    }
  }
}

}  // namespace
}  // namespace shardwise::cli::generate_memory_test

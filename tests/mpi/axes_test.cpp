// Meshes of all axes over MPI, on two simulated nodes, against one rank in fp64.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/mpi/mpirun.h"
#include "tests/support/covering.h"
#include "tests/support/error_text.h"
#include "tests/support/extent.h"
#include "tests/train/runs.h"
#include "tests/train/same_files.h"

namespace shardwise::testing::mpi_axes_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

constexpr int kRanks = 4;

const std::vector<Words> kMeshes{{"--dp", "4"},
                                 {"--dp", "2", "--tp", "2"},
                                 {"--pp", "2", "--tp", "2"},
                                 {"--pp", "2", "--dp", "2"},
                                 {"--pp", "4"}};
const Words kFamilies{"llama", "qwen3, tied", "gpt2"};
const std::vector<Words> kFrozen{{}, {"--freeze", "*.1.*"}};
const Words kMicroBatches{"1", "3", "5"}, kRecomputed{"none", "selective", "full"};

Space space() {
  Space space;
  Words meshes;
  for (const Words& mesh : kMeshes) meshes.push_back(::testing::PrintToString(mesh));
  space.add("mesh", meshes);
  space.add("stream", {"whole", "sharded"});
  space.add("zero", {"0", "1", "2", "3"});
  space.add("weights", {"of a host", "of a replica"});
  space.add("schedule", {"1f1b", "afab", "interleaved"});
  space.add("recompute", kRecomputed);
  space.add("family", kFamilies);
  space.add("frozen", {"nothing", "a block"});
  space.add("micro-batches", kMicroBatches);
  for (size_t mesh = 0; mesh < kMeshes.size(); ++mesh) {
    const auto exclude = [&](bool is_excluded, const std::string& dimension, const std::string& value) {
      if (is_excluded) space.exclude({"mesh", meshes[mesh]}, {dimension, value});
    };
    const bool has_stages = kMeshes[mesh][0] == "--pp";
    exclude(has_stages, "zero", "2");  // refused
    exclude(has_stages, "zero", "3");
    exclude(!has_stages, "schedule", "afab");
    exclude(!has_stages || kMeshes[mesh][1] == "4", "schedule", "interleaved");
    exclude(kMeshes[mesh].back() != "2" || kMeshes[mesh].size() < 4 || kMeshes[mesh][2] != "--tp", "stream",
            "sharded");
  }
  return space;
}

config::Config config_of(int family) {
  config::Config config = small_byte_config();
  config.num_hidden_layers = 4;
  if (family == 1) config.model_type = "qwen3", config.qk_norm = config.tie_word_embeddings = true;
  return family == 2 ? as_gpt2(config) : config;
}

class AxesOverMpi : public ::testing::Test {
 protected:
  AxesOverMpi() { small_options(scratch_); }

  /// Returns loss and norm of each step.
  std::vector<double> steps_of(Program program, const std::string& log) const {
    EXPECT_EQ(exit_code(program.wait(120)), 0) << program.errors();
    std::vector<double> values;
    std::istringstream lines(test::contents(log));
    for (std::string line; std::getline(lines, line);) {
      const json record = json::parse(line);
      if (!record.contains("step")) continue;
      values.insert(values.end(), {record["loss"], record["grad_norm"]});
    }
    return values;
  }

  Words train(const Combination& c, const std::string& log, const Words& more) const {
    Words flags{"--log",
                log,
                "--dtype",
                "fp64",
                "--grad-accum",
                kMicroBatches[size_t(c[8])],
                "--dropout",
                "0.1",
                "--attention-dropout",
                "0.1",
                "--clip-grad",
                "0.5"};
    for (const Words& words : {kFrozen[size_t(c[7])], more})
      flags.insert(flags.end(), words.begin(), words.end());
    return training_command(scratch_, 3, flags);
  }

  Words mesh_flags(const Combination& c) const {
    Words flags = kMeshes[size_t(c[0])];
    const auto append = [&](const Words& more) { flags.insert(flags.end(), more.begin(), more.end()); };
    if (c[1] == 0) append({"--no-sequence-parallel"});
    append({"--zero", std::to_string(c[2]), "--recompute", kRecomputed[size_t(c[5])]});
    append({"--shared-weights", c[3] == 0 ? "auto" : "off"});
    if (c[4] == 1) append({"--pp-schedule", "afab"});
    if (c[4] == 2) append({"--virtual-stages", "2"});
    return flags;
  }

  Scratch scratch_;
};

TEST_F(AxesOverMpi, HaveTheStepsOfOneRank) {
  const Space choices = space();
  std::map<std::vector<int>, std::vector<double>> of_one_rank;  // by family, frozen weights and micro-batches
  const auto combinations = covering(choices, /*strength=*/is_full() ? 3 : 2, /*seed=*/1);
  for (const Combination& c : combinations) {
    SCOPED_TRACE(choices.name(c));
    scratch_.put("config.json", config::to_json(config_of(c[6])));
    const std::string log = scratch_ / "log";
    std::vector<double>& expected = of_one_rank[{c[6], c[7], c[8]}];
    if (expected.empty()) expected = steps_of(Program(train(c, log, {}), environment()), log);
    ASSERT_EQ(expected.size(), 6u);
    const std::vector<double> steps = steps_of(
        Program(mpirun(kRanks, train(c, log, mesh_flags(c))), environment({"SHARDWISE_NODES=2"})), log);
    expect_close(steps, expected, 1e-10);
  }
  std::printf("covered: %zu runs over MPI\n", combinations.size());
}

/// The replicas of a host read one copy: the files are those of replicas that have one each, and of what a
/// host's second replica holds only its weights are missing. Every row is sent to the other host once.
TEST_F(AxesOverMpi, ReplicasOfAHostShareWeights) {
  for (const char* zero : {"1", "2"}) {
    SCOPED_TRACE(zero);
    std::map<std::string, json> reports;
    for (const char* mode : {"auto", "off"}) {
      const Words flags{"--dp",
                        "6",
                        "--zero",
                        zero,
                        "--shared-weights",
                        mode,
                        "--grad-accum",
                        "5",
                        "--save",
                        scratch_ / (mode + std::string(zero)),
                        "--json"};
      Program program(mpirun(6, training_command(scratch_, 3, flags)), environment({"SHARDWISE_NODES=2"}));
      ASSERT_EQ(exit_code(program.wait(120)), 0) << program.errors();
      EXPECT_EQ(test::contains(program.errors(), "the 3 replicas of each host read one copy of the weights"),
                mode == std::string("auto"));
      reports[mode] = json::parse(program.output());
    }
    expect_same_files(scratch_ / ("auto" + std::string(zero)) + "/step-3",
                      scratch_ / ("off" + std::string(zero)) + "/step-3");
    for (int rank = 0; rank < 6; ++rank) {
      const json &shared = reports["auto"]["ranks"][size_t(rank)],
                 &own = reports["off"]["ranks"][size_t(rank)];
      for (const json& report : {shared, own})
        EXPECT_EQ(report["axes"]["dp"]["comm_bytes"], report["axes"]["dp"]["expected_comm_bytes"]);
      EXPECT_LT(shared["comm_bytes"], own["comm_bytes"]);
      const int64_t saved =
          own["peak_memory_bytes"].get<int64_t>() - shared["peak_memory_bytes"].get<int64_t>();
      EXPECT_EQ(saved, rank % 3 > 0 ? 4 * config::parameter_count(small_byte_config()) : 0)
          << "rank " << rank;
    }
  }
}

/// Of six ranks on two nodes, the second of three pairs is on both.
TEST_F(AxesOverMpi, WarnOfTensorParallelRanksOnSeveralNodes) {
  const auto errors_of = [&](const Words& flags) {
    Program program(mpirun(6, training_command(scratch_, 1, flags)), environment({"SHARDWISE_NODES=2"}));
    EXPECT_EQ(exit_code(program.wait(120)), 0) << program.errors();
    return program.errors();
  };
  EXPECT_PRED2(test::contains, errors_of({"--dp", "3", "--tp", "2"}),
               "train: --tp should divide the ranks of a node, or blocks send between nodes; got --tp 2, of "
               "which 2 of 6 ranks are in groups on several nodes");
  EXPECT_PRED2(test::contains, errors_of({"--dp", "3", "--tp", "2"}),
               "each replica has a copy of the weights");
  EXPECT_FALSE(test::contains(errors_of({"--dp", "2", "--tp", "3"}), "--tp should"));
  EXPECT_FALSE(test::contains(errors_of({"--tp", "6"}), "--tp should"));
}

}  // namespace
}  // namespace shardwise::testing::mpi_axes_test

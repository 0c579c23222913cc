// `shardwise train --dp` and `--pp` as a program: how many replicas it has, and what ranks send and hold.
#include <gtest/gtest.h>

#include <memory>

#include "tests/cli/train_program.h"
#include "tests/support/error_text.h"

namespace shardwise::cli::train_replicas_test {
namespace {

using namespace shardwise::testing;
using test::contains;

class TrainReplicas : public TrainProgram {};

/// Runs `argv` as `ranks` ranks that mpirun started, and returns rank 0's errors. All must exit with `code`.
std::string errors_by_mpirun(const std::vector<std::string>& argv, int ranks, const std::string& job,
                             int code) {
  std::vector<std::unique_ptr<Program>> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string number = std::to_string(rank), all = std::to_string(ranks);
    const Program::Options options{
        .environment = {"OMPI_COMM_WORLD_RANK=" + number, "OMPI_COMM_WORLD_SIZE=" + all,
                        "OMPI_COMM_WORLD_LOCAL_RANK=" + number, "OMPI_COMM_WORLD_LOCAL_SIZE=" + all,
                        "SHARDWISE_JOB=" + job, "SHARDWISE_THREADS=1"}};
    programs.push_back(std::make_unique<Program>(argv, options));
  }
  for (const auto& program : programs) EXPECT_EQ(exit_code(program->wait(60)), code) << program->errors();
  return programs[0]->errors();
}

TEST_F(TrainReplicas, TakesTheReplicasThatALauncherLeaves) {
  const std::string log = scratch_ / "log";
  const std::string errors =
      errors_by_mpirun(argv({"--tp", "2", "--dtype", "fp64", "--log", log}), 4, scratch_.path(), 0);
  EXPECT_PRED2(contains, errors, "dp 2, tp 2");
  Program one(argv({"--grad-accum", "2", "--dtype", "fp64", "--log", log + "1"}), kOneThread);
  expect_success(one);
  const std::vector<double> losses = losses_in(log), expected = losses_in(log + "1");
  ASSERT_EQ(losses.size(), 4u);
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-10 * expected[i]);
}

TEST_F(TrainReplicas, RefusesRanksThatAreNotTheProduct) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--tp", "2"}, {"--tp", "2", "--dp", "2"}, {"--dp", "2"}})
    EXPECT_PRED2(contains, errors_by_mpirun(argv(flags), 3, scratch_.path(), 2),
                 "must equal the product of the degrees of parallelism; got 3 from mpirun");
}

TEST_F(TrainReplicas, ListsReplicasAndWarnsOfIdleOnes) {
  Program program(argv({"--dp", "3", "--grad-accum", "2"}), kOneThread);
  expect_success(program);
  EXPECT_PRED2(contains, program.errors(), "\n             2  2          none  ");
  EXPECT_PRED2(contains, program.errors(),
               "--grad-accum should be at least --dp, or replicas have no micro-batch; got 2 and 3");
  Program busy(argv({"--dp", "2"}), kOneThread);
  expect_success(busy);
  EXPECT_FALSE(contains(busy.errors(), "should be")) << busy.errors();
}

/// Checks that exactly the axes that `flags` split are reported, with the planned bytes.
void expect_planned_axes(const json& rank, const std::vector<std::string>& flags) {
  for (const char* axis : {"pp", "dp", "tp"}) {
    const bool is_split = std::ranges::count(flags, "--" + std::string(axis)) > 0;
    EXPECT_EQ(rank["axes"].contains(axis), is_split) << rank;
    if (!rank["axes"].contains(axis)) continue;
    EXPECT_EQ(rank["axes"][axis]["comm_bytes"], rank["axes"][axis]["expected_comm_bytes"]) << rank;
    EXPECT_GE(rank["axes"][axis]["comm_ms"], rank["axes"][axis]["wait_ms"]);
  }
}

TEST_F(TrainReplicas, PrintsWhatAxesSendAndHowLongStagesAreIdle) {
  Program program(argv({"--pp", "2", "--dp", "2", "--grad-accum", "6"}), kOneThread);
  expect_success(program);
  EXPECT_PRED2(contains, program.errors(),
               "\naxis  sent per step      planned  communication      waiting\npp ");
  EXPECT_PRED2(contains, program.errors(), "\ndp ");
  EXPECT_FALSE(contains(program.errors(), "\ntp ")) << program.errors();
  EXPECT_PRED2(contains, program.errors(),
               "pipeline stages are idle for at least 25.0 % of a step, by (p - 1) / (vm + p - 1)");
  Program alone(argv({"--tp", "2"}), kOneThread);
  expect_success(alone);
  EXPECT_FALSE(contains(alone.errors(), "\naxis ")) << alone.errors();
}

TEST_F(TrainReplicas, SentBytesOfStagesMatchThePlan) {
  using Flags = std::vector<std::string>;
  config::Config config = small_byte_config();
  config.num_hidden_layers = 5;
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    scratch_.put("config.json", config::to_json(config));
    for (const Flags& mesh : {Flags{"--pp", "2"},
                              {"--pp", "5"},
                              {"--pp", "2", "--virtual-stages", "2", "--tp", "2"},
                              {"--pp", "2", "--tp", "2"},
                              {"--pp", "2", "--tp", "2", "--no-sequence-parallel"},
                              {"--pp", "3", "--dp", "2"},
                              {"--pp", "2", "--dp", "2", "--tp", "2", "--zero", "0"}}) {
      for (const Flags& more : {Flags{"--recompute", "full"},
                                {"--freeze", "model.embed_tokens.weight"},
                                {"--freeze", "model.layers.0.*", "model.layers.1.*", "model.layers.2.*"}}) {
        Flags flags = {"--json", "--grad-accum", "3"};
        flags.insert(flags.end(), mesh.begin(), mesh.end());
        flags.insert(flags.end(), more.begin(), more.end());
        SCOPED_TRACE(::testing::PrintToString(flags) + (tied ? " tied" : ""));
        Program program(argv(flags), kOneThread);
        expect_success(program);
        for (const json& rank : ranks_in(program.output())) {
          EXPECT_GT(rank["comm_bytes"], 0);
          EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
          expect_planned_axes(rank, flags);
        }
      }
    }
  }
}

TEST_F(TrainReplicas, MemoryOfStagesMatchesThePlan) {
  using Flags = std::vector<std::string>;
  config::Config config = small_byte_config();
  config.num_hidden_layers = 6;
  config.hidden_size = 96;  // rotary tables, which are not planned, are then below a hundredth
  config.intermediate_size = 211;
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    scratch_.put("config.json", config::to_json(config));
    for (const Flags& flags : {Flags{"--pp", "2"},
                               {"--pp", "3", "--pp-layers", "1,3,2"},
                               {"--pp", "2", "--virtual-stages", "3"},
                               {"--pp", "2", "--virtual-stages", "2", "--tp", "2"},
                               {"--pp", "2", "--tp", "2"},
                               {"--pp", "2", "--tp", "2", "--no-sequence-parallel"},
                               {"--pp", "2", "--dp", "2"},
                               {"--pp", "2", "--dp", "2", "--zero", "0"},
                               {"--pp", "2", "--recompute", "full"},
                               {"--pp", "2", "--dtype", "bf16"},
                               {"--pp", "2", "--freeze", "model.layers.0.*"}}) {
      Flags all = {"--json", "--grad-accum", "6"};
      all.insert(all.end(), flags.begin(), flags.end());
      SCOPED_TRACE(::testing::PrintToString(all) + (tied ? " tied" : ""));
      Program program(argv(all), kOneThread);
      expect_success(program);
      for (const json& rank : ranks_in(program.output())) {
        const double expected = rank["expected_peak_memory_bytes"];
        EXPECT_NEAR(rank["peak_memory_bytes"], expected, 0.02 * expected);
      }
    }
  }
}

TEST_F(TrainReplicas, ListsStagesAndWarnsOfIdleOnes) {
  Program program(argv({"--pp", "2", "--dp", "2", "--grad-accum", "3"}), kOneThread);
  expect_success(program);
  EXPECT_PRED2(contains, program.errors(), "\n           0  0 to 1     embedding, 0");
  EXPECT_PRED2(contains, program.errors(), "\n           1  2 to 3     1, last norm and head");
  EXPECT_PRED2(contains, program.errors(), "\n             1  1, 3       2 ");
  EXPECT_PRED2(
      contains, program.errors(),
      "--grad-accum should be at least --dp x --pp, or a stage is idle most of the time; got 3 and 2 x 2");
}

TEST_F(TrainReplicas, SentBytesAndMemoryOfReplicasMatchThePlan) {
  using Flags = std::vector<std::string>;
  config::Config config = small_byte_config();
  config.hidden_size = 96;  // rotary tables, which are not planned, are then below a hundredth
  config.intermediate_size = 211;
  scratch_.put("config.json", config::to_json(config));
  for (const Flags& mesh : {Flags{"--dp", "2"}, {"--dp", "3"}, {"--dp", "2", "--tp", "2"}}) {
    for (const Flags& splitting : {Flags{"--zero", "0"},
                                   {"--shared-weights", "off"},
                                   {},
                                   {"--zero", "2"},
                                   {"--zero", "2", "--shared-weights", "off"},
                                   {"--zero", "2", "--dtype", "bf16"},
                                   {"--zero", "2", "--freeze", "model.layers.0.*"},
                                   {"--zero", "3"},
                                   {"--zero", "3", "--dtype", "bf16"},
                                   {"--zero", "3", "--freeze", "model.layers.0.*"},
                                   {"--zero", "3", "--freeze", "*embed*", "--freeze", "model.layers.0.*"},
                                   {"--dtype", "bf16"},
                                   {"--freeze", "model.layers.0.*"}}) {
      Flags flags = {"--json", "--grad-accum", "4", "--clip-grad", "0.1"};
      flags.insert(flags.end(), mesh.begin(), mesh.end());
      flags.insert(flags.end(), splitting.begin(), splitting.end());
      SCOPED_TRACE(::testing::PrintToString(flags));
      Program program(argv(flags), kOneThread);
      expect_success(program);
      for (const json& rank : ranks_in(program.output())) {
        EXPECT_GT(rank["comm_bytes"], 0);
        EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
        const double expected = rank["expected_peak_memory_bytes"];
        EXPECT_NEAR(rank["peak_memory_bytes"], expected, 0.02 * expected);
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::cli::train_replicas_test

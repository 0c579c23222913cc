// What commands write next to checkpoints, models and reports, survives a crash after any system call: it is
// complete or absent, and durable when the command has ended.
#include <fmt/format.h>

#include "tests/durability/recorded_run.h"
#include "tests/launch/program.h"

namespace shardwise::testing::durability_outputs_test {
namespace {

const std::vector<Crash> kCrashes{kProcessKill,
                                  {Fate::lost, Fate::lost},
                                  {Fate::lost, Fate::kept},
                                  {Fate::kept, Fate::lost},
                                  {Fate::zeroed, Fate::kept},
                                  {Fate::mixed, Fate::mixed, 1},
                                  {Fate::mixed, Fate::mixed, 2}};

class WrittenOutput : public RecordedRun {
 protected:
  WrittenOutput() {
    Program program(training(/*tp=*/1, /*steps=*/1, {"--save", model_}));
    EXPECT_EQ(exit_code(program.wait(kStartLimit)), 0) << program.errors();
  }

  /// Runs the command, which writes `out` in the tree.
  void expect_survives(const Words& argv, const std::string& out) {
    run(argv);
    const Replay writes = replay("");
    ASSERT_FALSE(writes.versions().empty());
    ASSERT_EQ(writes.versions().back().path, out);
    const size_t states = writes.for_each_state(kCrashes, [](const CrashState&) {});
    fmt::print("covered: {} states of a disk while {} is written\n", states, out);
  }

  const std::string model_ = scratch_ / "model";
};

TEST_F(WrittenOutput, OfShardAndMergeIsCompleteOrAbsent) {
  scratch_.put("model/step-1/additional_chat_templates/tool_use.jinja", "in a directory of the model's");
  expect_survives({SHARDWISE_PROGRAM, "shard", model_, tree_ + "/sharded", "--tp", "2"}, "sharded");
  expect_survives({SHARDWISE_PROGRAM, "merge", tree_ + "/sharded", tree_ + "/merged"}, "merged");
}

TEST_F(WrittenOutput, OfQuantizeIsCompleteOrAbsent) {
  expect_survives({SHARDWISE_PROGRAM, "quantize", model_, tree_ + "/int8", "--bits", "8"}, "int8");
}

TEST_F(WrittenOutput, OfTokenizeIsCompleteOrAbsent) {
  const std::string of_a_killed_process = scratch_.put("tree/tokens.bin.tmp00000000000000004711", "half");
  expect_survives({SHARDWISE_PROGRAM, "tokenize", "--tokenizer", "bytes", "--text", scratch_ / "text",
                   "--out", tree_ + "/tokens.bin"},
                  "tokens.bin");
  EXPECT_FALSE(std::filesystem::exists(of_a_killed_process));
}

TEST_F(WrittenOutput, OfReportIsTheNewOrTheOldOne) {
  scratch_.put("tree/report.json", "{}");
  expect_survives(training(/*tp=*/2, /*steps=*/1, {"--report", tree_ + "/report.json"}), "report.json");
}

}  // namespace
}  // namespace shardwise::testing::durability_outputs_test

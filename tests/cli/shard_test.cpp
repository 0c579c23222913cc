// shard, merge and inspect as they are called: what is printed, what a run makes of the directory, what a
// signal and a mistake leave behind.
#include <signal.h>
#include <unistd.h>

#include "shardwise/base/clock.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/cli/trained_model.h"

namespace shardwise::cli::shard_test {
namespace {

class ShardCommand : public TrainedModel {
 protected:
  static std::string generated(const std::string& model, int tp) {
    return run({"generate", "--model", model, "--prompt", "line", "--max-new-tokens", "20", "--tp",
                std::to_string(tp)})
        .output;
  }
};

TEST_F(ShardCommand, ARunFromShardsSaysTheSame) {
  const std::string whole = generated(model_, 2), cut = scratch_ / "cut";
  const Said said = call({"shard", model_, cut, "--tp", "2", "--json"});
  ASSERT_EQ(said.code, 0) << said.errors;
  const json summary = json::parse(said.output);
  EXPECT_EQ(summary["tp"], 2);
  EXPECT_EQ(summary["files"], (json{"rank-0-of-2.safetensors", "rank-1-of-2.safetensors"}));
  EXPECT_EQ(generated(cut, 2), whole);
  EXPECT_EQ(generated(cut, 3), generated(model_, 3));
}

TEST_F(ShardCommand, FromOneSizeToAnotherIsThatFromTheWhole) {
  const std::string three = scratch_ / "three", two = scratch_ / "two", direct = scratch_ / "direct";
  ASSERT_EQ(call({"shard", model_, three, "--tp", "3"}).code, 0);
  const Said said = call({"shard", three, two, "--to", "2"});
  ASSERT_EQ(said.code, 0) << said.errors;
  ASSERT_EQ(call({"shard", model_, direct, "--to", "2"}).code, 0);
  for (const char* file : {"rank-0-of-2.safetensors", "rank-1-of-2.safetensors"})
    EXPECT_EQ(test::contents(fs::path(two) / file), test::contents(fs::path(direct) / file)) << file;
}

TEST_F(ShardCommand, TrainingBeginsWithShards) {
  const std::string cut = scratch_ / "cut";
  ASSERT_EQ(call({"shard", model_, cut, "--tp", "1"}).code, 0);
  const Said said = call({"train", "--text", scratch_ / "text", "--init", cut, "--seq-len", "11",
                          "--batch-size", "2", "--steps", "1"});
  EXPECT_EQ(said.code, 0) << said.errors;
  EXPECT_PRED2(contains, said.errors, "train: read ");
  EXPECT_PRED2(contains, said.errors, " s from " + cut);
}

TEST_F(ShardCommand, MergeGivesTheWholeAgain) {
  const std::string cut = scratch_ / "cut", merged = scratch_ / "merged";
  ASSERT_EQ(call({"shard", model_, cut, "--tp", "3"}).code, 0);
  const Said said = call({"merge", cut, merged});
  EXPECT_EQ(said.code, 0) << said.errors;
  EXPECT_PRED2(contains, said.output, "in 1 files: " + merged);
  EXPECT_EQ(generated(merged, 1), generated(model_, 1));
}

TEST_F(ShardCommand, InspectTellsShapesOnEachRank) {
  const Said text = call({"inspect", model_, "--tp", "2"});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_PRED2(contains, text.output, "on 2 ranks");
  EXPECT_PRED2(contains, text.output, "[130, 24], [129, 24]");  // of 259 bytes and specials
  EXPECT_PRED2(contains, text.output, "[12, 24] x2");           // three heads of 4
  const json listed = json::parse(call({"inspect", "--json", "--tp", "2", model_}).output);
  EXPECT_EQ(listed["tp"], 2);
  EXPECT_EQ(listed["rank_bytes"].size(), 2);
  EXPECT_EQ(listed["tensors"][0]["name"], "lm_head.weight");
  EXPECT_EQ(listed["tensors"][0]["rank_shapes"], json::parse("[[130, 24], [129, 24]]"));
}

TEST_F(ShardCommand, ValidationErrors) {
  const std::string out = scratch_ / "out";
  expect_refused({"shard"}, {"shard: IN and OUT name the directories", "got none"});
  expect_refused({"shard", model_}, {"got one"});
  expect_refused({"shard", model_, out}, {"shard: --tp says for how many ranks"});
  expect_refused({"shard", model_, out, "--tp", "0"}, {"shard: --tp must be at least 1; got 0"});
  expect_refused({"shard", model_, out, "--tp", "7"},
                 {"shard: --tp must be at most the 6 query heads; got 7"});
  expect_refused({"shard", model_, out, "more", "--tp", "2"}, {"takes no further argument; got more"});
  expect_refused({"merge", model_, out, "--tp", "2"}, {"merge: unknown flag --tp"});
  expect_refused({"shard", model_, model_, "--tp", "2"}, {"must not exist yet", model_});
  expect_refused({"merge", scratch_ / "absent", out}, {"absent"});
  expect_refused({"inspect"}, {"inspect: DIR names the directory of a checkpoint"});
  expect_refused({"inspect", model_, "--tp", "7"}, {"inspect: --tp must be at most the 6 query heads"});
  expect_refused({"inspect", scratch_ / "absent"}, {"absent"});
}

TEST_F(ShardCommand, DamagedWeights) {
  const std::string file = model_ + "/step-2/model.safetensors", all = test::contents(file);
  scratch_.put("model/step-2/model.safetensors", all.substr(0, all.size() - 8));
  expect_refused({"shard", model_, scratch_ / "out", "--tp", "2"}, {"model.safetensors", "truncated"});
  std::string retyped = all;
  retyped.replace(retyped.find("\"F32\""), 5, "\"I32\"");
  scratch_.put("model/step-2/model.safetensors", retyped);
  expect_refused({"merge", model_, scratch_ / "out"}, {"must be F32, BF16, F16 or F64; got I32"});
}

TEST_F(ShardCommand, ASignalLeavesNothing) {
  auto config = testing::small_byte_config();
  config.vocab_size = 11'000'000;  // 2.2 GB to be written
  const std::string large = scratch_ / "large";
  testing::put_zeros(large, config);
  const auto before = names();
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program({SHARDWISE_PROGRAM, "shard", large, scratch_ / "out", "--tp", "6"}, kOneThread);
    const base::Stopwatch watch;
    while (names() == before && watch.seconds() < 60) usleep(1000);
    program.send(signal);
    EXPECT_EQ(testing::exit_code(program.wait(60)), 128 + signal) << program.errors();
    EXPECT_PRED2(contains, program.errors(), "shardwise: ended by signal " + std::to_string(signal));
    EXPECT_EQ(names(), before);
  }
}

}  // namespace
}  // namespace shardwise::cli::shard_test

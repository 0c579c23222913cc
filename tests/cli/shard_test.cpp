// `shardwise shard`, `merge` and `inspect`: output, use of the written directories, usage errors and signals.
#include <signal.h>
#include <unistd.h>

#include "shardwise/base/clock.h"
#include "shardwise/checkpoint/checkpoint.h"
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

TEST_F(ShardCommand, GenerationFromShardsGivesTheSameText) {
  const std::string expected = generated(model_, 2), sharded = scratch_ / "sharded";
  const Outcome result = call({"shard", model_, sharded, "--tp", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.errors;
  const json summary = json::parse(result.output);
  EXPECT_EQ(summary["tp"], 2);
  EXPECT_EQ(summary["files"], (json{"rank-0-of-2.safetensors", "rank-1-of-2.safetensors"}));
  EXPECT_EQ(generated(sharded, 2), expected);
  EXPECT_EQ(generated(sharded, 3), generated(model_, 3));
}

TEST_F(ShardCommand, ReshardingEqualsShardingTheOriginal) {
  const std::string three = scratch_ / "three", two = scratch_ / "two", direct = scratch_ / "direct";
  ASSERT_EQ(call({"shard", model_, three, "--tp", "3"}).code, 0);
  const Outcome result = call({"shard", three, two, "--to", "2"});
  ASSERT_EQ(result.code, 0) << result.errors;
  ASSERT_EQ(call({"shard", model_, direct, "--to", "2"}).code, 0);
  for (const char* file : {"rank-0-of-2.safetensors", "rank-1-of-2.safetensors"})
    EXPECT_EQ(test::contents(fs::path(two) / file), test::contents(fs::path(direct) / file)) << file;
}

TEST_F(ShardCommand, TrainingStartsFromShards) {
  const std::string sharded = scratch_ / "sharded";
  ASSERT_EQ(call({"shard", model_, sharded, "--tp", "1"}).code, 0);
  const Outcome result = call({"train", "--text", scratch_ / "text", "--init", sharded, "--seq-len", "11",
                               "--batch-size", "2", "--steps", "1"});
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_PRED2(contains, result.errors, "train: read ");
  EXPECT_PRED2(contains, result.errors, " s from " + sharded);
}

TEST_F(ShardCommand, MergeRestoresTheFullWeights) {
  const std::string sharded = scratch_ / "sharded", merged = scratch_ / "merged";
  ASSERT_EQ(call({"shard", model_, sharded, "--tp", "3"}).code, 0);
  const Outcome result = call({"merge", sharded, merged});
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_PRED2(contains, result.output, "in 1 files: " + merged);
  EXPECT_EQ(generated(merged, 1), generated(model_, 1));
}

TEST_F(ShardCommand, InspectPrintsTheShapesOnEachRank) {
  const Outcome text = call({"inspect", model_, "--tp", "2"});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_PRED2(contains, text.output, "on 2 ranks");
  EXPECT_PRED2(contains, text.output, "[130, 24], [129, 24]");  // 259 rows: bytes and special tokens
  EXPECT_PRED2(contains, text.output, "[12, 24] x2");           // three heads of 4
  const json listed = json::parse(call({"inspect", "--json", "--tp", "2", model_}).output);
  EXPECT_EQ(listed["tp"], 2);
  EXPECT_EQ(listed["rank_bytes"].size(), 2);
  EXPECT_EQ(listed["tensors"][0]["name"], "lm_head.weight");
  EXPECT_EQ(listed["tensors"][0]["rank_shapes"], json::parse("[[130, 24], [129, 24]]"));
}

// The name and the shape of a tensor that no model reads are the file's choice.
TEST_F(ShardCommand, InspectShortensLongNamesAndShapes) {
  const std::string directory = scratch_ / "long", file = directory + "/model.safetensors";
  const auto with = [&](const std::string& name, const std::vector<int64_t>& shape) {
    fs::remove_all(directory);
    fs::copy(checkpoint::resolve(model_), directory, fs::copy_options::recursive);
    auto tensors = testing::read_safetensors(file);
    tensors[name] = {"F32", shape, ""};
    std::ofstream(file, std::ios::binary) << testing::safetensors_of(tensors);
    const Outcome result = call({"inspect", directory});
    EXPECT_EQ(result.code, 0) << result.errors;
    return result.output;
  };
  const size_t rows = std::ranges::count(with("rotary_emb.inv_freq", {0}), '\n');
  const std::string named = with(std::string(10'000, 'x') + ".rotary_emb.inv_freq", {0});
  EXPECT_PRED2(contains, named, "\"xxx");
  EXPECT_LT(named.size(), rows * 200);
  const std::string shaped = with("rotary_emb.inv_freq", std::vector<int64_t>(10'000, 0));
  EXPECT_PRED2(contains, shaped, "[0,0,0");
  EXPECT_LT(shaped.size(), rows * 200);
}

TEST_F(ShardCommand, ValidationErrors) {
  const std::string out = scratch_ / "out";
  expect_refused({"shard"}, {"shard: IN and OUT must name the directories", "got none"});
  expect_refused({"shard", model_}, {"got one"});
  expect_refused({"shard", model_, out}, {"shard: --tp must be given"});
  expect_refused({"shard", model_, out, "--tp", "0"}, {"shard: --tp must be at least 1; got 0"});
  expect_refused({"shard", model_, out, "--tp", "7"},
                 {"shard: --tp must be at most the 6 query heads; got 7"});
  expect_refused({"shard", model_, out, "more", "--tp", "2"}, {"accepts no further argument; got more"});
  expect_refused({"merge", model_, out, "--tp", "2"}, {"merge: unknown flag --tp"});
  expect_refused({"shard", model_, model_, "--tp", "2"}, {"must not exist yet", model_});
  expect_refused({"merge", scratch_ / "absent", out}, {"absent"});
  expect_refused({"inspect"}, {"inspect: DIR must name a checkpoint directory"});
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

TEST_F(ShardCommand, ASignalLeavesNoFiles) {
  auto config = testing::small_byte_config();
  config.vocab_size = 11'000'000;  // 2.2 GB to write
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

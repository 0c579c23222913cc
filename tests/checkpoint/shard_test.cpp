// Cut for one size, for another, and put together again: bit for bit, at every pair of sizes.
#include "shardwise/checkpoint/shard.h"

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "shardwise/checkpoint/inspect.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::shard_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains, test::error_text;

void no_progress(int64_t, int64_t) {}

struct Case {
  const char* name;
  const char* family = "llama";
  int64_t heads = 8, kv_heads = 2;
  bool is_tied = false;
  const char* dtype = "F32";
};

/// Odd sizes everywhere, 17 rows of vocabulary.
model::Config config_of(const Case& c) {
  model::Config config = uneven_config(c.is_tied, c.family);
  config.num_attention_heads = c.heads;
  config.num_key_value_heads = c.kv_heads;
  config.intermediate_size = 13;
  if (config.model_type == "gpt2") config.hidden_size = c.heads * config.head_dim;
  return config;
}

class Shard : public ::testing::TestWithParam<Case> {
 protected:
  Shard() {
    if (config_.model_type == "gpt2") leave_out_prefix();
    if (config_.model_type == "llama")
      whole_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F64", {3}, std::string(24, 'r')};
    if (config_.model_type == "gpt2") {
      whole_["h.0.attn.masked_bias"] = {"F32", {}, "mask"};
      whole_["h.1.attn.bias"] = {"U8", {1, 2, 3}, "biases"};
    }
    if (config_.tie_word_embeddings) whole_["lm_head.weight"] = {"BF16", {1, 3}, "a copy"};
    dir_.put("whole/config.json", model::to_json(config_));
    dir_.put("whole/tokenizer.json", "{}");
    dir_.put("whole/README.md", "no part of the model");
    dir_.put("whole/model.safetensors", safetensors_of(whole_));
  }

  /// As the first published files of the family do.
  void leave_out_prefix() {
    StoredTensors shorter;
    for (const auto& [name, tensor] : whole_) {
      shorter[name.starts_with("transformer.") ? name.substr(12) : name] = tensor;
    }
    whole_ = shorter;
  }

  void shard(const std::string& from, const std::string& to, int tp) const {
    checkpoint::shard(dir_ / from, dir_ / to, tp, no_progress);
  }

  /// All sizes that have a head for each rank.
  std::vector<int> sizes() const {
    std::vector<int> sizes;
    for (const int tp : {1, 2, 3, 4, 8}) {
      if (tp <= config_.num_attention_heads) sizes.push_back(tp);
    }
    return sizes;
  }

  const model::Config config_ = config_of(GetParam());
  StoredTensors whole_ = random_tensors(config_, GetParam().dtype);
  const TemporaryDirectory dir_;
};

TEST_P(Shard, MergesToTheSameBytes) {
  for (const int tp : sizes()) {
    const std::string cut = std::to_string(tp), merged = "merged" + cut;
    shard("whole", cut, tp);
    checkpoint::merge(dir_ / cut, dir_ / merged, no_progress);
    EXPECT_EQ(read_safetensors(dir_ / (merged + "/model.safetensors")), whole_) << tp;
    EXPECT_EQ(names_in(dir_ / merged),
              (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
    EXPECT_EQ(test::contents(dir_ / (merged + "/config.json")), model::to_json(config_));
  }
}

// The way back begins with the same files as the other size's own, so it is one of these pairs too.
TEST_P(Shard, GoesFromEverySizeToEveryOther) {
  for (const int tp : sizes()) shard("whole", std::to_string(tp), tp);
  for (const int from : sizes()) {
    for (const int to : sizes()) {
      shard(std::to_string(from), "there", to);
      EXPECT_EQ(files_in(dir_ / "there"), files_in(dir_ / std::to_string(to))) << from << " to " << to;
      fs::remove_all(dir_ / "there");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Shard,
                         ::testing::Values(Case{"llama"}, Case{"one_kv_head", "llama", 8, 1, true, "BF16"},
                                           Case{"six_heads", "llama", 6, 3}, Case{"phi3", "phi3", 8, 4},
                                           Case{"phi3_six_heads_tied", "phi3", 6, 2, true},
                                           Case{"gpt2", "gpt2", 8, 8, true, "BF16"}),
                         [](const auto& info) { return info.param.name; });

/// A directory that is cut for `tp` ranks, and what each of `ranks` makes of it.
class ShardedLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedLoad, GivesEachRankItsSlicesAtEverySize) {
  const model::Config config = uneven_config(/*is_tied=*/false, GetParam());
  const WholeState whole = whole_state(config, at::kFloat, /*seed=*/5);
  const TemporaryDirectory dir;
  save_whole(dir.path(), config, whole, /*ranks=*/1, /*step=*/1);
  for (const int tp : {1, 2, 3, 4}) {
    const std::string cut = dir / std::to_string(tp);
    checkpoint::shard(dir / "step-1", cut, tp, no_progress);
    EXPECT_NO_THROW(checkpoint::check(cut, /*needs_state=*/false));
    for (const int ranks : {1, 2, 4}) {
      std::mutex mutex;
      on_ranks(ranks, [&](const comm::Group& group) {
        RankState rank(config, group, whole);
        const auto loaded = checkpoint::load_weights(cut, rank.weights);
        checkpoint::load_state(dir / "step-1", rank.state, rank.weights);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(differing(rank, whole), std::vector<std::string>{})
            << "cut for " << tp << ", read at " << ranks;
        if (ranks != tp) return;
        const std::string own = "/rank-" + std::to_string(group.rank()) + "-of-" + std::to_string(tp);
        const auto bytes =
            fs::file_size(cut + own + ".safetensors") + fs::file_size(cut + "/shardwise.index.json");
        EXPECT_EQ(loaded.bytes_read, static_cast<int64_t>(bytes));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedLoad, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(ShardedInspect, IsThatOfTheWhole) {
  const model::Config config = uneven_config();
  const TemporaryDirectory dir;
  dir.put("whole/config.json", model::to_json(config));
  dir.put("whole/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  checkpoint::shard(dir / "whole", dir / "cut", 3, no_progress);
  const auto whole = checkpoint::inspect(dir / "whole", 2), cut = checkpoint::inspect(dir / "cut", 2);
  EXPECT_EQ(cut.rank_bytes, whole.rank_bytes);
  EXPECT_EQ(cut.tensors.size(), whole.tensors.size());
}

/// A safetensors file whose header was changed.
std::string with_header(const std::string& file, const std::function<void(json&)>& change) {
  size_t length = 0;
  for (int i = 0; i < 8; ++i) length += size_t{static_cast<unsigned char>(file.at(i))} << (8 * i);
  json header = json::parse(file.substr(8, length));
  change(header);
  std::string text = header.dump();
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text + file.substr(8 + length);
}

/// What is said of a directory cut for two ranks after something was changed in it.
class DamagedShards : public ::testing::Test {
 protected:
  DamagedShards() {
    dir_.put("whole/config.json", model::to_json(config_));
    dir_.put("whole/model.safetensors", safetensors_of(random_tensors(config_, "F32")));
    checkpoint::shard(dir_ / "whole", dir_ / "cut", 2, no_progress);
  }

  /// Said alike by the check before a run, by a merge, and by cutting anew; which leave nothing behind.
  void expect_refused(const std::vector<std::string>& named) const {
    const std::string said = error_text([&] { checkpoint::check(dir_ / "cut", false); });
    for (const std::string& part : named) EXPECT_PRED2(contains, said, part);
    EXPECT_EQ(error_text([&] { checkpoint::merge(dir_ / "cut", dir_ / "out", no_progress); }), said);
    EXPECT_EQ(error_text([&] { checkpoint::shard(dir_ / "cut", dir_ / "out", 3, no_progress); }), said);
    EXPECT_EQ(names_in(dir_.path()), (std::vector<std::string>{"cut", "whole"}));
  }

  void expect_file_refused(const std::function<void(StoredTensors&)>& change,
                           const std::vector<std::string>& named) const {
    const std::string good = test::contents(dir_ / kFile);
    StoredTensors tensors = read_safetensors(dir_ / kFile);
    change(tensors);
    dir_.put(kFile, safetensors_of(tensors));
    expect_refused(named);
    dir_.put(kFile, good);
  }

  void expect_index_refused(const json& changes, const std::vector<std::string>& named) const {
    const std::string good = test::contents(dir_ / kIndex);
    json index = json::parse(good);
    index.merge_patch(changes);
    dir_.put(kIndex, index.dump());
    expect_refused(named);
    dir_.put(kIndex, good);
  }

  const model::Config config_ = uneven_config();
  const TemporaryDirectory dir_;
  const std::string kFile = "cut/rank-1-of-2.safetensors", kIndex = "cut/shardwise.index.json";
  const std::string kQ = "model.layers.1.self_attn.q_proj.weight", kNorm = "model.norm.weight";
};

TEST_F(DamagedShards, ARankFileThatIsGoneOrCutShort) {
  const std::string file = test::contents(dir_ / kFile);
  dir_.put(kFile, file.substr(0, file.size() - 4));
  expect_refused({kFile, "truncated"});
  fs::remove(dir_ / kFile);
  expect_refused({kFile, "must be a readable file"});
}

TEST_F(DamagedShards, TensorsThatAreMissingOrTooMany) {
  expect_file_refused([&](StoredTensors& tensors) { tensors.erase(kQ); },
                      {kFile, "must hold the tensor", kQ});
  expect_file_refused([&](StoredTensors& tensors) { tensors["more"] = tensors[kNorm]; },
                      {kFile, "must hold only what", "more"});
}

TEST_F(DamagedShards, ATensorThatNeitherIndexNorFilesHave) {
  for (const char* name : {"cut/rank-0-of-2.safetensors", "cut/rank-1-of-2.safetensors"}) {
    StoredTensors tensors = read_safetensors(dir_ / name);
    tensors.erase(kQ);
    dir_.put(name, safetensors_of(tensors));
  }
  expect_index_refused({{"tensors", {{kQ, nullptr}}}}, {kIndex, "must hold the tensor", kQ});
}

TEST_F(DamagedShards, TensorsOfAnotherShapeOrType) {
  expect_file_refused(
      [&](StoredTensors& tensors) {
        tensors[kQ].shape = {6, 24};
      },
      {kFile, kQ, "must have the shape [12, 12]; got [6, 24]"});
  expect_file_refused([&](StoredTensors& tensors) { tensors[kQ].dtype = "I32"; },
                      {kFile, kQ, "must be F32, as shardwise.index.json says; got I32"});
}

TEST_F(DamagedShards, TensorsThatOverlapOrStandTwice) {
  const std::string file = test::contents(dir_ / kFile), norm = "model.layers.0.input_layernorm.weight";
  dir_.put(kFile, with_header(file, [&](json& header) {
             header[norm]["data_offsets"] = header[kNorm]["data_offsets"];
           }));
  expect_refused({kFile, "must begin where the one before it ends"});
  std::string twice = file;
  twice.replace(twice.find("layers.1.input_layernorm"), 8, "layers.0");
  dir_.put(kFile, twice);
  expect_refused({kFile, norm, "must be given once"});
}

TEST_F(DamagedShards, AnIndexThatLies) {
  expect_index_refused({{"format", "other"}}, {kIndex, "must be shardwise.shards of version 1; got other"});
  expect_index_refused({{"version", 2}}, {kIndex, "of version 2"});
  expect_index_refused({{"tp", 3}}, {kIndex, "files must name a file for each of tp ranks; got 2 for tp 3"});
  expect_index_refused({{"files", {"rank-0-of-2.safetensors", "../x"}}},
                       {kIndex, "must name rank-1-of-2", "../x"});
  expect_index_refused({{"tensors", {{kQ, nullptr}}}}, {"rank-0-of-2", "must hold only what", kQ});
  expect_index_refused({{"tensors", {{kQ, {{"shape", {12, 24}}}}}}}, {kIndex, kQ, "another shape"});
  expect_index_refused({{"tensors", {{kQ, {{"dim", 1}}}}}}, {kIndex, kQ, "another dim"});
  expect_index_refused({{"tensors", {{kQ, {{"rule", "ffn, dim 0"}}}}}}, {kIndex, kQ, "another rule"});
  const json swapped = json::parse("[[[12, 24]], [[0, 12]]]"),
             ragged = json::parse("[[[0, 12]], [[12, 24, 36]]]");
  expect_index_refused({{"tensors", {{kQ, {{"held", swapped}}}}}}, {kIndex, kQ, "another held"});
  expect_index_refused({{"tensors", {{kQ, {{"held", ragged}}}}}}, {kIndex, "[begin, end]"});
  expect_index_refused({{"tensors", {{kQ, {{"dtype", "BF16"}}}}}}, {kQ, "must be BF16, as"});
  expect_index_refused({{"tensors", {{kQ, {{"dtype", "F31"}}}}}}, {kIndex, kQ, "dtype must be one of"});
  expect_index_refused({{"tensors", nullptr}}, {kIndex, "tensors must be an object"});
}

TEST_F(DamagedShards, TensorsThatTheModelHasNoPlaceFor) {
  const json extra = json::parse(
      R"({"dtype": "F32", "shape": [12], "rule": "not read; kept by the first rank", "dim": 0, "held": []})");
  const std::string file = dir_ / "cut/rank-0-of-2.safetensors";
  StoredTensors tensors = read_safetensors(file);
  tensors["model.other.weight"] = tensors[kNorm];
  dir_.put("cut/rank-0-of-2.safetensors", safetensors_of(tensors));
  expect_index_refused({{"tensors", {{"model.other.weight", extra}}}},
                       {"must hold only tensors that config.json has a place for; got model.other.weight"});
}

TEST_F(DamagedShards, AnotherModelsConfig) {
  model::Config config = config_;
  config.num_key_value_heads = 6;
  dir_.put("cut/config.json", model::to_json(config));
  expect_refused({kIndex, "must be cut as config.json says"});
}

TEST(ShardDirectory, MustBeFreeAndInADirectory) {
  const TemporaryDirectory dir;
  const model::Config config = uneven_config();
  dir.put("whole/config.json", model::to_json(config));
  dir.put("whole/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  const auto said = [&](const std::string& out) {
    return error_text([&] { checkpoint::shard(dir / "whole", out, 2, no_progress); });
  };
  EXPECT_PRED2(contains, said(dir / "whole/"),
               "shard: the directory to write must not exist yet; got " + dir / "whole");
  EXPECT_PRED2(contains, said(dir / "no/where"), "shard: the directory to write must lie in a directory");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"whole"});
}

TEST(ShardDirectory, IsNotThereWhenTheWorkIsGivenUp) {
  const TemporaryDirectory dir;
  const model::Config config = uneven_config();
  dir.put("whole/config.json", model::to_json(config));
  dir.put("whole/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  for (const int after : {0, 10, 1000}) {  // the last is told of when all is written
    int told = 0;
    const auto give_up = [&](int64_t done, int64_t all) {
      EXPECT_LE(done, all);
      EXPECT_EQ(names_in(dir.path()).size(), 2);  // under another name so far
      if (told++ == after || done == all) throw std::runtime_error("enough");
    };
    EXPECT_THROW(checkpoint::shard(dir / "whole", dir / "cut", 2, give_up), std::runtime_error);
    EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"whole"});
  }
}

TEST(ShardDirectory, RemovesWhatADeadProcessLeft) {
  const TemporaryDirectory dir;
  const model::Config config = uneven_config();
  dir.put("whole/config.json", model::to_json(config));
  dir.put("whole/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  dir.put(".cut.tmp-123/config.json", "half");
  dir.put(".cuts.tmp-123/config.json", "another's");
  checkpoint::shard(dir / "whole", dir / "cut", 2, no_progress);
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{".cuts.tmp-123", "cut", "whole"}));
}

}  // namespace
}  // namespace shardwise::testing::shard_test

// Shards a model for one tp size, for another, and merges it: the same bits for every pair of sizes.
#include "shardwise/checkpoint/shard.h"

#include <gtest/gtest.h>

#include <filesystem>
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
  std::string prefix = {};  // removed from the names, as in some published files
};

/// Returns a config with odd sizes everywhere and a vocabulary of 17.
config::Config config_of(const Case& c) {
  config::Config config = uneven_config(c.is_tied, c.family);
  config.num_attention_heads = c.heads;
  config.num_key_value_heads = c.kv_heads;
  config.intermediate_size = 13;
  if (config.model_type == "gpt2") config.hidden_size = c.heads * config.head_dim;
  return config;
}

class Shard : public ::testing::TestWithParam<Case> {
 protected:
  Shard() {
    remove_prefix(GetParam().prefix);
    if (config_.model_type == "llama")
      full_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F64", {3}, std::string(24, 'r')};
    if (config_.model_type == "gpt2") {
      full_["h.0.attn.masked_bias"] = {"F32", {}, "mask"};
      full_["h.1.attn.bias"] = {"U8", {1, 2, 3}, "biases"};
    }
    if (config_.tie_word_embeddings) full_["lm_head.weight"] = {"BF16", {1, 3}, "a copy"};
    dir_.put("full/config.json", config::to_json(config_));
    dir_.put("full/tokenizer.json", "{}");
    dir_.put("full/README.md", "no part of the model");
    dir_.put("full/model.safetensors", safetensors_of(full_));
  }

  void remove_prefix(const std::string& prefix) {
    StoredTensors shorter;
    for (const auto& [name, tensor] : full_) {
      shorter[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = tensor;
    }
    full_ = shorter;
  }

  void shard(const std::string& from, const std::string& to, int tp) const {
    checkpoint::shard(dir_ / from, dir_ / to, tp, no_progress);
  }

  /// Returns the tp sizes with a head for each rank.
  std::vector<int> sizes() const {
    std::vector<int> sizes;
    for (const int tp : {1, 2, 3, 4, 8}) {
      if (tp <= config_.num_attention_heads) sizes.push_back(tp);
    }
    return sizes;
  }

  const config::Config config_ = config_of(GetParam());
  StoredTensors full_ = random_tensors(config_, GetParam().dtype);
  const TemporaryDirectory dir_;
};

TEST_P(Shard, MergesToTheSameBytes) {
  for (const int tp : sizes()) {
    const std::string sharded = std::to_string(tp), merged = "merged" + sharded;
    shard("full", sharded, tp);
    checkpoint::merge(dir_ / sharded, dir_ / merged, no_progress);
    EXPECT_EQ(read_safetensors(dir_ / (merged + "/model.safetensors")), full_) << tp;
    EXPECT_EQ(names_in(dir_ / merged),
              (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
    EXPECT_EQ(test::contents(dir_ / (merged + "/config.json")), config::to_json(config_));
  }
}

// Compares every resharded directory with one that was sharded from the full weights.
TEST_P(Shard, ReshardsFromEverySizeToEveryOther) {
  for (const int tp : sizes()) shard("full", std::to_string(tp), tp);
  for (const int from : sizes()) {
    for (const int to : sizes()) {
      shard(std::to_string(from), "resharded", to);
      EXPECT_EQ(files_in(dir_ / "resharded"), files_in(dir_ / std::to_string(to))) << from << " to " << to;
      fs::remove_all(dir_ / "resharded");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Shard,
                         ::testing::Values(Case{"llama"}, Case{"one_kv_head", "llama", 8, 1, true, "BF16"},
                                           Case{"six_heads", "llama", 6, 3}, Case{"phi3", "phi3", 8, 4},
                                           Case{"phi3_six_heads_tied", "phi3", 6, 2, true},
                                           Case{"llama_without_prefix", "llama", 6, 3, false, "F32",
                                                "model."},
                                           Case{"gpt2", "gpt2", 8, 8, true, "BF16", "transformer."}),
                         [](const auto& info) { return info.param.name; });

/// Loads of sharded directories at the same and at other tp sizes.
class ShardedLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedLoad, LoadsTheShardsOfEachRankAtEverySize) {
  const config::Config config = uneven_config(/*is_tied=*/false, GetParam());
  const FullState full = full_state(config, at::kFloat, /*seed=*/5);
  const TemporaryDirectory dir;
  save_full(dir.path(), config, full, /*ranks=*/1, /*step=*/1);
  for (const int tp : {1, 2, 3, 4}) {
    const std::string sharded = dir / std::to_string(tp);
    checkpoint::shard(dir / "step-1", sharded, tp, no_progress);
    EXPECT_NO_THROW(checkpoint::check(sharded, /*needs_state=*/false));
    for (const int ranks : {1, 2, 4}) {
      std::mutex mutex;
      on_ranks(ranks, [&](const comm::Group& group) {
        RankState rank(config, group, full);
        const auto loaded = checkpoint::load_weights(sharded, rank.weights);
        checkpoint::load_state(dir / "step-1", rank.state, rank.weights);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(differing(rank, full), std::vector<std::string>{})
            << "sharded for " << tp << ", loaded at " << ranks;
        if (ranks != tp) return;
        const std::string file = "/rank-" + std::to_string(group.rank()) + "-of-" + std::to_string(tp);
        const auto bytes =
            fs::file_size(sharded + file + ".safetensors") + fs::file_size(sharded + "/shardwise.index.json");
        EXPECT_EQ(loaded.bytes_read, static_cast<int64_t>(bytes));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedLoad, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(ShardedInspect, EqualsThatOfUnshardedWeights) {
  const config::Config config = uneven_config();
  const TemporaryDirectory dir;
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  checkpoint::shard(dir / "full", dir / "sharded", 3, no_progress);
  const auto full = checkpoint::inspect(dir / "full", 2), sharded = checkpoint::inspect(dir / "sharded", 2);
  EXPECT_EQ(sharded.rank_bytes, full.rank_bytes);
  EXPECT_EQ(sharded.tensors.size(), full.tensors.size());
}

/// Returns the bytes of a safetensors file with a changed header.
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

/// Errors for a directory that was sharded for two ranks and then modified.
class DamagedShards : public ::testing::Test {
 protected:
  DamagedShards() {
    dir_.put("full/config.json", config::to_json(config_));
    dir_.put("full/model.safetensors", safetensors_of(random_tensors(config_, "F32")));
    checkpoint::shard(dir_ / "full", dir_ / "sharded", 2, no_progress);
  }

  /// Expects the same error from check, merge and shard, and no files left behind.
  void expect_rejected(const std::vector<std::string>& named) const {
    const std::string error = error_text([&] { checkpoint::check(dir_ / "sharded", false); });
    for (const std::string& part : named) EXPECT_PRED2(contains, error, part);
    EXPECT_EQ(error_text([&] { checkpoint::merge(dir_ / "sharded", dir_ / "out", no_progress); }), error);
    EXPECT_EQ(error_text([&] { checkpoint::shard(dir_ / "sharded", dir_ / "out", 3, no_progress); }), error);
    EXPECT_EQ(names_in(dir_.path()), (std::vector<std::string>{"full", "sharded"}));
  }

  void expect_file_rejected(const std::function<void(StoredTensors&)>& change,
                            const std::vector<std::string>& named) const {
    const std::string good = test::contents(dir_ / kFile);
    StoredTensors tensors = read_safetensors(dir_ / kFile);
    change(tensors);
    dir_.put(kFile, safetensors_of(tensors));
    expect_rejected(named);
    dir_.put(kFile, good);
  }

  void expect_index_rejected(const json& changes, const std::vector<std::string>& named) const {
    const std::string good = test::contents(dir_ / kIndex);
    json index = json::parse(good);
    index.merge_patch(changes);
    dir_.put(kIndex, index.dump());
    expect_rejected(named);
    dir_.put(kIndex, good);
  }

  const config::Config config_ = uneven_config();
  const TemporaryDirectory dir_;
  const std::string kFile = "sharded/rank-1-of-2.safetensors", kIndex = "sharded/shardwise.index.json";
  const std::string kQ = "model.layers.1.self_attn.q_proj.weight", kNorm = "model.norm.weight";
};

TEST_F(DamagedShards, MissingOrTruncatedRankFile) {
  const std::string file = test::contents(dir_ / kFile);
  dir_.put(kFile, file.substr(0, file.size() - 4));
  expect_rejected({kFile, "truncated"});
  fs::remove(dir_ / kFile);
  expect_rejected({kFile, "must be a readable file"});
}

// A short index can state so many ranks that what is computed for each of them exceeds the memory.
TEST_F(DamagedShards, MissingRankFilesAreFoundBeforeItsTensorsAreCompared) {
  fs::remove(dir_ / kFile);
  expect_index_rejected({{"tensors", {{kQ, {{"dim", 1}}}}}}, {kFile, "must be a readable file"});
}

TEST_F(DamagedShards, MissingOrUnexpectedTensors) {
  expect_file_rejected([&](StoredTensors& tensors) { tensors.erase(kQ); },
                       {kFile, "must contain the tensor", kQ});
  expect_file_rejected([&](StoredTensors& tensors) { tensors["more"] = tensors[kNorm]; },
                       {kFile, "must contain only", "more"});
}

TEST_F(DamagedShards, TensorMissingFromIndexAndFiles) {
  for (const char* name : {"sharded/rank-0-of-2.safetensors", "sharded/rank-1-of-2.safetensors"}) {
    StoredTensors tensors = read_safetensors(dir_ / name);
    tensors.erase(kQ);
    dir_.put(name, safetensors_of(tensors));
  }
  expect_index_rejected({{"tensors", {{kQ, nullptr}}}}, {kIndex, "must contain the tensor", kQ});
}

TEST_F(DamagedShards, WrongShapeOrDtype) {
  expect_file_rejected(
      [&](StoredTensors& tensors) {
        tensors[kQ].shape = {6, 24};
      },
      {kFile, kQ, "must have the shape [12, 12]; got [6, 24]"});
  expect_file_rejected([&](StoredTensors& tensors) { tensors[kQ].dtype = "I32"; },
                       {kFile, kQ, "must be F32, as listed in shardwise.index.json; got I32"});
}

TEST_F(DamagedShards, OverlappingOrDuplicateTensors) {
  const std::string file = test::contents(dir_ / kFile), norm = "model.layers.0.input_layernorm.weight";
  dir_.put(kFile, with_header(file, [&](json& header) {
             header[norm]["data_offsets"] = header[kNorm]["data_offsets"];
           }));
  expect_rejected({kFile, "must begin at the end of the previous tensor"});
  std::string twice = file;
  twice.replace(twice.find("layers.1.input_layernorm"), 8, "layers.0");
  dir_.put(kFile, twice);
  expect_rejected({kFile, norm, "must not be duplicated"});
}

TEST_F(DamagedShards, InconsistentIndex) {
  expect_index_rejected({{"format", "other"}}, {kIndex, "must be shardwise.shards of version 1; got other"});
  expect_index_rejected({{"version", 2}}, {kIndex, "of version 2"});
  expect_index_rejected({{"tp", 3}}, {kIndex, "files must list one file per rank; got 2 for tp 3"});
  expect_index_rejected({{"files", {"rank-0-of-2.safetensors", "../x"}}},
                        {kIndex, "must name rank-1-of-2", "../x"});
  expect_index_rejected({{"tensors", {{kQ, nullptr}}}}, {"rank-0-of-2", "must contain only", kQ});
  expect_index_rejected({{"tensors", {{kQ, {{"shape", {12, 24}}}}}}}, {kIndex, kQ, "different shape"});
  expect_index_rejected({{"tensors", {{kQ, {{"dim", 1}}}}}}, {kIndex, kQ, "different dim"});
  expect_index_rejected({{"tensors", {{kQ, {{"rule", "ffn, dim 0"}}}}}}, {kIndex, kQ, "different rule"});
  const json swapped = json::parse("[[[12, 24]], [[0, 12]]]"),
             ragged = json::parse("[[[0, 12]], [[12, 24, 36]]]");
  expect_index_rejected({{"tensors", {{kQ, {{"held", swapped}}}}}}, {kIndex, kQ, "different held"});
  expect_index_rejected({{"tensors", {{kQ, {{"held", ragged}}}}}}, {kIndex, "[begin, end]"});
  expect_index_rejected({{"tensors", {{kQ, {{"dtype", "BF16"}}}}}}, {kQ, "must be BF16, as listed in"});
  expect_index_rejected({{"tensors", {{kQ, {{"dtype", "F31"}}}}}}, {kIndex, kQ, "dtype must be one of"});
  expect_index_rejected({{"tensors", nullptr}}, {kIndex, "tensors must be given"});
  expect_index_rejected({{"tensors", 5}}, {kIndex, "tensors must be an object; got 5"});
}

TEST_F(DamagedShards, TensorsThatTheModelDoesNotHave) {
  const json extra = json::parse(
      R"({"dtype": "F32", "shape": [12], "rule": "not read; kept by the first rank", "dim": 0, "held": []})");
  const std::string file = dir_ / "sharded/rank-0-of-2.safetensors";
  StoredTensors tensors = read_safetensors(file);
  tensors["model.other.weight"] = tensors[kNorm];
  dir_.put("sharded/rank-0-of-2.safetensors", safetensors_of(tensors));
  expect_index_rejected(
      {{"tensors", {{"model.other.weight", extra}}}},
      {R"(must contain only tensors of the model in config.json; got "model.other.weight")"});
}

TEST_F(DamagedShards, AnotherModelsConfig) {
  config::Config config = config_;
  config.num_key_value_heads = 6;
  dir_.put("sharded/config.json", config::to_json(config));
  expect_rejected({kIndex, "must be sharded as config.json requires"});
}

}  // namespace
}  // namespace shardwise::testing::shard_test

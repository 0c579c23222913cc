// Saves at one tp size and loads at another: every shard equals its part of the full tensor in every bit.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/model/names.h"
#include "tests/checkpoint/fixture.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::reshard_test {
namespace {

struct Case {
  const char* name;
  at::ScalarType dtype;
  bool is_tied;
  const char* family = "llama";
  int64_t heads = 0, kv_heads = 0;  // 0: uneven_config's
  std::vector<int> sizes = {1, 2, 3, 4};
};

config::Config config_of(const Case& c) {
  config::Config config = uneven_config(c.is_tied, c.family);
  if (c.heads > 0) config.num_attention_heads = c.heads, config.num_key_value_heads = c.kv_heads;
  return config;
}

class Reshard : public ::testing::TestWithParam<Case> {
 protected:
  const config::Config config_ = config_of(GetParam());
  const FullState full_ = full_state(config_, GetParam().dtype, /*seed=*/1);
  const TemporaryDirectory dir_;

  /// Loads `step-N` on `ranks` threads and compares every shard of every rank.
  void expect_loaded(int step, int ranks) const {
    std::mutex mutex;
    on_ranks(ranks, [&](const comm::Group& group) {
      RankState rank(config_, group, full_);
      const std::string directory = dir_ / ("step-" + std::to_string(step));
      checkpoint::load_weights(directory, rank.weights);
      checkpoint::load_state(directory, rank.state, rank.weights);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(differing(rank, full_), std::vector<std::string>{})
          << "saved at " << step << ", loaded at " << ranks;
      EXPECT_EQ(rank.state.step, step);
      EXPECT_EQ(rank.state.sequences, 3 * step);
    });
  }
};

TEST_P(Reshard, EveryTpSizeLoadsWhatEveryOtherSaved) {
  for (const int saved_at : GetParam().sizes) {
    save_full(dir_.path(), config_, full_, saved_at, /*step=*/saved_at);
    for (const int loaded_at : GetParam().sizes) expect_loaded(saved_at, loaded_at);
  }
}

TEST_P(Reshard, FilesContainFullTensors) {
  save_full(dir_.path(), config_, full_, /*ranks=*/3, /*step=*/7);
  size_t found = 0;
  for (const char* name : {"step-7/model.safetensors", "step-7/optimizer.safetensors"}) {
    const io::SafetensorsFile file(dir_ / name);
    for (const auto& [tensor, expected] : full_.tensors) {
      if (!file.contains(tensor)) continue;
      at::Tensor stored = at::empty(expected.sizes(), expected.options());
      EXPECT_EQ(file.find(tensor).shape, expected.sizes().vec()) << tensor;
      file.read_tensor(file.find(tensor), stored.mutable_data_ptr());
      EXPECT_TRUE(same_bits(stored, expected)) << tensor;
      ++found;
    }
  }
  EXPECT_EQ(found, full_.tensors.size());
  const io::SafetensorsFile weights(dir_ / "step-7/model.safetensors");
  EXPECT_EQ(weights.contains("lm_head.weight"), !GetParam().is_tied);
  EXPECT_EQ(weights.metadata(), (io::Metadata{{"format", "pt"}}));
}

TEST_P(Reshard, FilesAreIndependentOfTheTpSize) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
    save_full(dir_.path(), config_, full_, /*ranks=*/1, /*step=*/5);
    const std::string at_one = test::contents(dir_ / "step-5/" + name);
    save_full(dir_.path(), config_, full_, GetParam().sizes.back(), /*step=*/5);
    EXPECT_TRUE(at_one == test::contents(dir_ / "step-5/" + name)) << name;
  }
}

TEST_P(Reshard, CheckPassesAndConfigRoundTrips) {
  save_full(dir_.path(), config_, full_, /*ranks=*/2, /*step=*/2);
  EXPECT_NO_THROW(checkpoint::check(dir_ / "step-2", /*needs_state=*/true));
  config::Config expected = config_;
  expected.dtype = checkpoint::config_dtype(GetParam().dtype);
  EXPECT_EQ(config::load_config(dir_ / "step-2"), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Reshard,
    ::testing::Values(Case{"fp32", at::kFloat, false}, Case{"bf16_tied", at::kBFloat16, true},
                      Case{"fp64", at::kDouble, false}, Case{"phi3", at::kFloat, false, "phi3"},
                      Case{"gpt2", at::kBFloat16, true, "gpt2"},
                      Case{"gpt2_untied", at::kFloat, false, "gpt2"},
                      // 8 ranks: the heads of Qwen2 of 0.5B and 7B, and of Llama 2.
                      Case{"qwen2_small", at::kBFloat16, true, "llama", 14, 2, {1, 3, 8}},
                      Case{"qwen2", at::kFloat, false, "llama", 28, 4, {1, 4, 8}},
                      Case{"llama2", at::kFloat, false, "llama", 32, 32, {1, 2, 8}}),
    [](const auto& info) { return info.param.name; });

TEST(LoadWeights, ConvertsToTheModelsDtype) {
  const config::Config config = uneven_config();
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const FullState full = full_state(config, stored, /*seed=*/2);
    const TemporaryDirectory dir;
    save_full(dir.path(), config, full, /*ranks=*/1, /*step=*/1);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      on_ranks(2, [&](const comm::Group& group) {
        const model::DecoderWeights weights(config, group, dtype);
        checkpoint::load_weights(dir / "step-1", weights);
        for_each_stored(weights, [&](size_t i, const model::StoredTensor& tensor) {
          const auto piece = tensor.held(group.rank()).at(0);
          const at::Tensor local = weights.used_parameters()[i].parameter->value.detach();
          const at::Tensor expected = full.tensors.at(tensor.name).to(dtype);
          EXPECT_TRUE(same_bits(local.narrow(tensor.dim, piece.local_begin, piece.size),
                                expected.narrow(tensor.dim, piece.global_begin, piece.size)))
              << tensor.name << " from " << stored << " to " << dtype;
        });
      });
    }
  }
}

TEST(ExpectedWeights, MatchTheModelsParameters) {
  for (const bool is_tied : {false, true}) {
    for (const bool has_bias : {false, true}) {
      config::Config config = uneven_config(is_tied);
      config.qkv_bias = config.attention_out_bias = has_bias;
      config.mlp_bias = !has_bias;
      std::map<std::string, std::vector<int64_t>> listed;
      for (const auto& tensor : model::stored_tensors(config, /*tp=*/1)) listed[tensor.name] = tensor.shape;
      EXPECT_EQ(listed, stored_shapes(config));
      const model::DecoderWeights weights(config, comm::Group(), at::kFloat);
      std::map<std::string, std::vector<int64_t>> held;
      for_each_stored(weights,
                      [&](size_t, const model::StoredTensor& stored) { held[stored.name] = stored.shape; });
      EXPECT_EQ(held, listed);
    }
  }
}

}  // namespace
}  // namespace shardwise::testing::reshard_test

// A load reads only the bytes of each rank's shards and needs little memory in addition to the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <numeric>

#include "shardwise/base/memory_counter.h"
#include "shardwise/checkpoint/load_cost.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::load_test {
namespace {

/// The sizes of a rank's shards in the four splits.
struct ShardSizes {
  int64_t vocab, heads, kv_heads, ffn;
};

/// The shards of uneven_config's 17 rows, 6 heads, 3 KV heads and 101 columns on 1 to 3 ranks, counted by
/// hand. On 2 ranks KV head 1 is replicated.
const std::vector<std::vector<ShardSizes>> kShardSizes = {
    {{17, 6, 3, 101}}, {{9, 3, 2, 51}, {8, 3, 2, 50}}, {{6, 2, 1, 34}, {6, 2, 1, 34}, {5, 2, 1, 33}}};

// The number of elements on a rank: two layers, head_dim 4, two embeddings of `vocab` rows.

int64_t llama_elements(const ShardSizes& s) {
  const int64_t h = 12, d = 4;  // every projection has a bias; those of o and down are replicated
  const int64_t attention = (s.heads + 2 * s.kv_heads) * d * (h + 1) + s.heads * d * h + h;
  const int64_t mlp = 2 * s.ffn * (h + 1) + s.ffn * h + h;
  return 2 * s.vocab * h + 2 * (attention + mlp + 2 * h) + h;
}

int64_t phi3_elements(const ShardSizes& s) {
  const int64_t h = 12, d = 4;
  const int64_t attention = (s.heads + 2 * s.kv_heads) * d * h + s.heads * d * h;
  return 2 * s.vocab * h + 2 * (attention + 3 * s.ffn * h + 2 * h) + h;
}

int64_t gpt2_elements(const ShardSizes& s) {
  const int64_t h = 24, d = 4, positions = 16;  // as many KV heads as query heads; norms have biases
  const int64_t attention = 3 * s.heads * d * (h + 1) + s.heads * d * h + h;
  const int64_t mlp = s.ffn * (h + 1) + s.ffn * h + h;
  return 2 * s.vocab * h + positions * h + 2 * (attention + mlp + 4 * h) + 2 * h;
}

/// Returns the size of a safetensors file's header.
int64_t header_bytes(const std::string& path) {
  const std::string file = test::contents(path);
  int64_t bytes = 8;
  for (int i = 0; i < 8; ++i) bytes += int64_t{static_cast<unsigned char>(file.at(i))} << (8 * i);
  return bytes;
}

struct Case {
  const char* family;
  int64_t (*elements)(const ShardSizes&);
};

class Load : public ::testing::TestWithParam<Case> {};

TEST_P(Load, EachRankReadsOnlyTheBytesOfItsShards) {
  const auto [family, elements] = GetParam();
  const config::Config config = uneven_config(/*is_tied=*/false, family);
  const FullState full = full_state(config, at::kFloat, /*seed=*/3);
  const TemporaryDirectory dir;
  save_full(dir.path(), config, full, /*ranks=*/1, /*step=*/1);
  const std::string directory = dir / "step-1";
  const int64_t weights_header = header_bytes(directory + "/model.safetensors");
  const int64_t state_header = header_bytes(directory + "/optimizer.safetensors");
  for (const auto& sizes : kShardSizes) {
    std::mutex mutex;
    on_ranks(static_cast<int>(sizes.size()), [&](const comm::Group& group) {
      RankState rank(config, group, full);
      const auto weights = checkpoint::load_weights(directory, rank.weights);
      const auto state = checkpoint::load_state(directory, rank.state, rank.weights);
      const std::lock_guard lock(mutex);
      const int64_t held = elements(sizes[group.rank()]);
      EXPECT_EQ(weights.bytes_read, weights_header + 4 * held) << group.rank() << " of " << group.size();
      EXPECT_EQ(state.bytes_read, state_header + 2 * 4 * held + 4 * 8)  // moments; progress
          << group.rank() << " of " << group.size();
      EXPECT_EQ(differing(rank, full), std::vector<std::string>{}) << group.rank() << " of " << group.size();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Load,
                         ::testing::Values(Case{"llama", llama_elements}, Case{"phi3", phi3_elements},
                                           Case{"gpt2", gpt2_elements}),
                         [](const auto& info) { return info.param.family; });

/// Returns a config that is large compared with the header and replicates no KV head.
config::Config medium_config(const std::string& family = "llama") {
  config::Config config = uneven_config(/*is_tied=*/false, family);
  config.vocab_size = 1000;
  config.hidden_size = 96;
  config.intermediate_size = 401;
  config.num_key_value_heads = 6;
  config.head_dim = 16;
  if (family != "gpt2") config.qkv_bias = config.attention_out_bias = config.mlp_bias = false;
  return config;
}

TEST(LoadCost, TotalBytesAreTheFilePlusReplicatedTensors) {
  const config::Config config = medium_config();
  const TemporaryDirectory directory;
  const int64_t file_bytes = put_zeros(directory.path(), config).all;
  const int64_t replicated = 5 * 96 * 4;  // the norms
  for (const int ranks : {1, 2, 3}) {
    std::vector<int64_t> read(ranks);
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(config, group, at::kBFloat16);
      read[group.rank()] = checkpoint::load_weights(directory.path(), weights).bytes_read;
    });
    const double limit = 1.05 * static_cast<double>(file_bytes) + static_cast<double>(replicated * ranks);
    EXPECT_LE(static_cast<double>(std::accumulate(read.begin(), read.end(), int64_t{0})), limit) << ranks;
    // A load of the full file by every rank would exceed the limit.
    if (ranks > 1) {
      EXPECT_GT(static_cast<double>(file_bytes * ranks), limit);
    }
  }
}

TEST(LoadCost, IsARangeForManyRanks) {
  const auto logged = [](std::vector<int64_t> bytes_read) {
    ::testing::internal::CaptureStderr();
    checkpoint::LoadCost cost;
    cost.seconds = 0.52;
    cost.bytes_read = std::move(bytes_read);
    checkpoint::log_load("train", "model", cost, comm::Group());
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(logged({12'300'000, 12'290'000}), "train: read 12.30, 12.29 MB in 0.52 s from model\n");
  std::vector<int64_t> nine(9, 2'000'000);
  nine[3] = 1'500'000;
  nine[7] = 2'250'000;
  EXPECT_EQ(logged(nine), "train: read 1.50 to 2.25 MB on each of 9 ranks in 0.52 s from model\n");
  EXPECT_EQ(logged({0, 0}), "");
}

/// Returns the peak tensor memory of `ranks` ranks, which share this process, in addition to the weights
/// while they load as `dtype` from fp32.
int64_t extra_bytes(const std::string& directory, const config::Config& config, at::ScalarType dtype,
                    int ranks) {
  int64_t before = 0, peak = 0;
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights weights(config, group, dtype);
    group.barrier();
    if (group.rank() == 0) {
      base::reset_peak();
      before = base::live_bytes();
    }
    group.barrier();
    checkpoint::load_weights(directory, weights);
    group.barrier();
    if (group.rank() == 0) peak = base::peak_bytes();
    group.barrier();
  });
  return peak - before;
}

constexpr int64_t kBuffer = 1 << 20;
constexpr int64_t kExchanged = 4096;  // for the exchange of errors at the end of a load

class LoadMemory : public ::testing::TestWithParam<const char*> {
 protected:
  LoadMemory() {
    base::install_memory_counter();
    config_.num_hidden_layers = 1;
    config_.vocab_size = 40'000;         // embeddings of 15.4 MB
    config_.intermediate_size = 50'000;  // weights of 19.2 MB, more than a buffer on two ranks too
    put_zeros(directory_.path(), config_);
  }

  config::Config config_ = medium_config(GetParam());
  const TemporaryDirectory directory_;
};

TEST_P(LoadMemory, IsOneBufferPerRank) {
  const bool is_transposed = config_.model_type == "gpt2";
  for (const int ranks : {1, 2}) {
    const int64_t same_dtype = extra_bytes(directory_.path(), config_, at::kFloat, ranks);
    EXPECT_LE(same_dtype, is_transposed ? ranks * kBuffer : ranks == 1 ? 0 : kExchanged) << ranks;
    EXPECT_LE(extra_bytes(directory_.path(), config_, at::kBFloat16, ranks), ranks * kBuffer) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LoadMemory, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(QuantizedOnLoad, RejectsAnotherShape) {
  const config::Config config = uneven_config();
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, full_state(config, at::kFloat, 13).tensors);
  const std::string file = path + "/model.safetensors", name = "model.layers.1.mlp.down_proj.weight";
  StoredTensors tensors = read_safetensors(file);
  std::ranges::reverse(tensors[name].shape);
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  const model::DecoderWeights weights(quantized_on_load(config, 8, 0), comm::Group(), at::kFloat);
  EXPECT_PRED2(test::contains, test::error_text([&] { checkpoint::load_weights(path, weights); }), name);
}

}  // namespace
}  // namespace shardwise::testing::load_test

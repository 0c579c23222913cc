// Weights that are quantized on load, or written quantized and loaded, sharded and merged: at every tp size
// the quantized values are those of the unsharded weights.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/memory_counter.h"
#include "shardwise/checkpoint/inspect.h"
#include "shardwise/checkpoint/quantize.h"
#include "shardwise/checkpoint/shard.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::quantized_load_test {
namespace {

using checkpoint::quantize;
using config::Config;
using config::Quantization;

constexpr int kMaxRanks = 4;
const auto kNoProgress = [](int64_t, int64_t) {};

struct Case {
  int64_t bits, group_size;
};
const std::vector<Case> kCases{{8, 0}, {8, 8}, {4, 0}, {4, 8}, {4, 32}};

std::string name_of(const std::string& what, const Case& c, int ranks) {
  return " of " + std::to_string(ranks) + ", " + what + " " + std::to_string(c.bits) + " bits in groups of " +
         std::to_string(c.group_size);
}

TEST(QuantizedLoad, ShardsAreSlicesOfTheFullWeights) {
  for (const std::string family : {"llama", "phi3", "gpt2"}) {
    const Config config = uneven_config(/*is_tied=*/false, family);  // sizes that packed files do not support
    const FullState full = full_state(config, at::kFloat, /*seed=*/11);
    const TemporaryDirectory directory;
    const std::string path = put_weights(directory.path(), config, full.tensors);
    for (const Case& c : kCases) {
      const Config expected_config = quantized_on_load(config, c.bits, c.group_size);
      const Tensors expected = quantized_tensors(expected_config, full.tensors);
      for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
        on_ranks(ranks, [&](const comm::Group& group) {
          const model::DecoderWeights weights(expected_config, group, at::kFloat);
          checkpoint::load_weights(path, weights);
          expect_shards(weights, expected, name_of(family, c, ranks));
        });
      }
    }
  }
}

/// Qwen2-72B's ffn: 231 groups of 128.
TEST(QuantizedLoad, SplitsAGroupCountThatTheRanksDoNotDivide) {
  Config config = uneven_config();
  config.intermediate_size = 29568;
  config.num_hidden_layers = 1;
  const FullState full = full_state(config, at::kFloat, /*seed=*/17);
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, full.tensors);
  const Config expected_config = quantized_on_load(config, 4, 128);
  const Tensors expected = quantized_tensors(expected_config, full.tensors);
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(expected_config, group, at::kFloat);
      const bool has_more = group.rank() < 231 % ranks;
      EXPECT_EQ(weights.layout().ffn.range(group.rank()).size(), (231 / ranks + has_more) * 128);
      checkpoint::load_weights(path, weights);
      expect_shards(weights, expected, " of " + std::to_string(ranks));
    });
  }
}

TEST(QuantizedLoad, ReadsShardsWithOtherBoundaries) {
  const Config config = uneven_config();
  const FullState full = full_state(config, at::kFloat, /*seed=*/12);
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, full.tensors),
                    sharded = directory / "sharded";
  checkpoint::shard(path, sharded, 3, kNoProgress);
  const Config expected_config =
      quantized_on_load(config, 4, 8);  // 101 ffn columns: 34, 34, 33 there, 40, 32, 29 here
  const Tensors expected = quantized_tensors(expected_config, full.tensors);
  on_ranks(3, [&](const comm::Group& group) {
    const model::DecoderWeights weights(expected_config, group, at::kFloat);
    checkpoint::load_weights(sharded, weights);
    expect_shards(weights, expected, " from shards");
  });
}

TEST(QuantizedLoad, RejectsInf) {
  const Config config = uneven_config();
  FullState full = full_state(config, at::kFloat, /*seed=*/13);
  full.tensors.at("model.layers.1.mlp.down_proj.weight")[3][70] = std::numeric_limits<float>::infinity();
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, full.tensors);
  const model::DecoderWeights weights(quantized_on_load(config, 8, 0), comm::Group(), at::kFloat);
  EXPECT_EQ(
      test::error_text([&] { checkpoint::load_weights(path, weights); }),
      "model.layers.1.mlp.down_proj.weight: must have magnitudes of at most 8.31901e+06 to be quantized, so "
      "that the scales fit fp16; got inf");
}

/// A weight whose columns are sharded, and one whose rows are.
TEST(QuantizedLoad, RejectsOnEveryRankWhatOneRankFinds) {
  const Config config = uneven_config();
  for (const std::string name : {"mlp.down_proj", "self_attn.q_proj"}) {
    FullState full = full_state(config, at::kFloat, /*seed=*/13);
    full.tensors.at("model.layers.1." + name + ".weight")[3][5] = std::numeric_limits<float>::infinity();
    const TemporaryDirectory directory;
    const std::string path = put_weights(directory.path(), config, full.tensors);
    on_ranks(3, [&](const comm::Group& group) {
      const model::DecoderWeights weights(quantized_on_load(config, 8, 8), group, at::kFloat);
      EXPECT_PRED2(test::contains,
                   test::error_text<base::CollectiveError>([&] { checkpoint::load_weights(path, weights); }),
                   "must have magnitudes of at most");
    });
  }
}

/// A directory of unquantized weights, and its quantized copy.
struct QuantizedDirectory {
  enum class Tables { dense, like_layers, int8 };
  QuantizedDirectory(const std::string& family, const Case& c, Tables tables = Tables::dense)
      : QuantizedDirectory(packable_config(family), c, tables) {}
  QuantizedDirectory(Config of, const Case& c, Tables tables) : config(std::move(of)) {
    config.vocab_size = 24;
    full = full_state(config, at::kFloat, /*seed=*/14).tensors;
    dense = put_weights(directory.path(), config, full);
    how = {.file_format = Quantization::FileFormat::gptq, .bits = c.bits, .group_size = c.group_size};
    how.lm_head = how.embeddings = tables != Tables::dense;
    how.int8_head = tables == Tables::int8;
    packed = directory / "packed";
    written = quantize(dense, packed, how, kNoProgress);
  }

  TemporaryDirectory directory;
  Config config;
  Tensors full;
  Quantization how;
  std::string dense, packed;
  checkpoint::WriteSummary written;
};

/// Expects packed weights to equal those that are quantized on load.
void expect_packed_equals_on_load(const QuantizedDirectory& f, const Case& c, int ranks) {
  const Config stored = config::load_config(f.packed);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights read(stored, group, at::kFloat);
    checkpoint::load_weights(f.packed, read);
    const model::DecoderWeights made(quantized_on_load(f.config, c.bits, c.group_size), group, at::kFloat);
    checkpoint::load_weights(f.dense, made);
    expect_same_matrices(read, made, name_of(f.config.model_type, c, ranks));
  });
}

TEST(QuantizedFiles, EqualQuantizationOnLoad) {
  for (const std::string family : {"llama", "phi3", "gpt2"}) {
    for (const Case& c : kCases) {
      const QuantizedDirectory f(family, c);
      ASSERT_EQ(config::load_config(f.packed).quantization, f.how);
      checkpoint::check(f.packed, /*needs_state=*/false);
      for (int ranks = 1; ranks <= kMaxRanks; ++ranks) expect_packed_equals_on_load(f, c, ranks);
    }
  }
}

/// One word of ffn columns on six ranks: 4 columns, or 8 that form one group.
TEST(QuantizedFiles, MayLeaveRanksWithoutColumns) {
  Config config = packable_config();
  for (const Case& c : kCases) {
    config.intermediate_size = 32 / c.bits;
    const QuantizedDirectory f(config, c, QuantizedDirectory::Tables::dense);
    const std::string sharded = f.directory / "sharded", merged = f.directory / "merged";
    checkpoint::shard(f.packed, sharded, 6, kNoProgress);
    checkpoint::merge(sharded, merged, kNoProgress);
    EXPECT_EQ(read_safetensors(merged + "/model.safetensors"),
              read_safetensors(f.packed + "/model.safetensors"));
    for (const int ranks : {2, 6}) expect_packed_equals_on_load(f, c, ranks);
  }
}

/// Expects lm_head and the embedding to have the values of their own format, and to be what a load quantizes.
void expect_tables(const QuantizedDirectory& f, const std::string& where) {
  const Config stored = config::load_config(f.packed);
  ASSERT_EQ(stored.quantization, f.how);
  Config on_load = f.config;
  on_load.quantization = f.how;
  on_load.quantization->file_format = Quantization::FileFormat::dense;
  const Tensors expected = quantized_tensors(stored, f.full);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(stored, group, at::kFloat), made(on_load, group, at::kFloat);
      checkpoint::load_weights(f.packed, weights);
      EXPECT_TRUE(weights.used_parameters().front().parameter->panels);
      EXPECT_TRUE(weights.used_parameters().back().parameter->panels);
      expect_shards(weights, expected, where);
      checkpoint::load_weights(f.dense, made);
      expect_same_matrices(weights, made, where);
    });
  }
}

TEST(QuantizedFiles, CanContainLmHeadAndEmbeddings) {
  using Tables = QuantizedDirectory::Tables;
  expect_tables(QuantizedDirectory("llama", {4, 8}, Tables::like_layers), " with tables like layers");
  expect_tables(QuantizedDirectory("llama", {4, 8}, Tables::int8), " with tables in int8");
  expect_tables(QuantizedDirectory("phi3", {8, 32}, Tables::int8), " with tables in int8 beside groups");
}

/// Unpacks the published format without the code under test.
TEST(QuantizedFiles, HaveGptqsFormat) {
  const QuantizedDirectory f("llama", {4, 32});
  const StoredTensors tensors = read_safetensors(f.packed + "/model.safetensors");
  const std::string module = "model.layers.0.mlp.down_proj.";
  const Stored &codes = tensors.at(module + "qweight"), &zeros = tensors.at(module + "qzeros"),
               &scales = tensors.at(module + "scales"), &groups = tensors.at(module + "g_idx");
  EXPECT_EQ(codes.dtype + zeros.dtype + scales.dtype + groups.dtype, "I32I32F16I32");
  EXPECT_EQ(codes.shape, (std::vector<int64_t>{13, 40}));  // 104 columns, eight per word
  EXPECT_EQ(zeros.shape, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(scales.shape, (std::vector<int64_t>{4, 40}));  // 3.25 groups
  EXPECT_EQ(groups.shape, (std::vector<int64_t>{104}));
  EXPECT_FALSE(tensors.contains(module + "weight"));
  const auto word = [](const Stored& from, int64_t i) {
    uint32_t value = 0;
    for (int byte = 0; byte < 4; ++byte)
      value |= uint32_t{static_cast<unsigned char>(from.bytes.at(4 * i + byte))} << (8 * byte);
    return value;
  };
  EXPECT_EQ(word(zeros, 0), 0x77777777u);
  EXPECT_EQ(word(groups, 103), 3u);
  const at::Tensor expected = quantized_tensors(config::load_config(f.packed), f.full).at(module + "weight");
  for (const int64_t output : {0, 17, 39}) {
    for (const int64_t column : {0, 31, 32, 103}) {
      const auto code = static_cast<int>(word(codes, column / 8 * 40 + output) >> (column % 8 * 4) & 15);
      const int64_t at = 2 * (column / 32 * 40 + output);
      const auto half = static_cast<uint16_t>(static_cast<unsigned char>(scales.bytes.at(at)) |
                                              static_cast<unsigned char>(scales.bytes.at(at + 1)) << 8);
      const float scale = c10::Half(half, c10::Half::from_bits());
      EXPECT_EQ((static_cast<float>(code) - 8) * scale, expected[output][column].item<float>());
    }
  }
  const auto config = nlohmann::json::parse(test::contents(f.packed + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "gptq");
  EXPECT_EQ(config["group_size"], 32);
}

TEST(QuantizedFiles, ShardAndMerge) {
  for (const std::string family : {"llama", "phi3"}) {
    const QuantizedDirectory f(family, {4, 8});
    const Config stored = config::load_config(f.packed);
    for (const int tp : {2, 3}) {
      const std::string sharded = f.directory / ("sharded" + std::to_string(tp)),
                        merged = sharded + "-merged";
      checkpoint::shard(f.packed, sharded, tp, kNoProgress);
      checkpoint::merge(sharded, merged, kNoProgress);
      EXPECT_EQ(read_safetensors(merged + "/model.safetensors"),
                read_safetensors(f.packed + "/model.safetensors"));
      for (const int ranks : {tp, 4}) {
        on_ranks(ranks, [&](const comm::Group& group) {
          const model::DecoderWeights of_shards(stored, group, at::kFloat),
              of_full(stored, group, at::kFloat);
          checkpoint::load_weights(sharded, of_shards);
          checkpoint::load_weights(f.packed, of_full);
          expect_same_matrices(of_shards, of_full, " from shards");
        });
      }
    }
  }
}

TEST(QuantizedFiles, InspectListsTheShapesOfEachRank) {
  const QuantizedDirectory f("llama", {4, 32});
  const auto found = checkpoint::inspect(f.packed, 2);
  EXPECT_EQ(found.parameters, config::parameter_count(f.config));
  for (const auto& tensor : found.tensors) {
    if (tensor.name != "model.layers.0.self_attn.o_proj.scales") continue;
    EXPECT_EQ(tensor.rank_shapes, (std::vector<std::vector<int64_t>>{{1, 40}, {2, 40}}));  // 24 of 48 columns
    EXPECT_EQ(tensor.rule, "heads in blocks, dim 0");
  }
  const auto ordinary = checkpoint::inspect(f.dense, 2);
  EXPECT_LT(found.bytes, ordinary.bytes / 2);
}

TEST(QuantizedFiles, UnsupportedSizesAreRejected) {
  const TemporaryDirectory directory;
  const Config config = uneven_config();
  const std::string path = put_weights(directory.path(), config, full_state(config, at::kFloat, 1).tensors);
  const Quantization how{.file_format = Quantization::FileFormat::gptq, .bits = 4, .group_size = 32};
  const auto error_of = [&](const std::string& in, const Quantization& as) {
    return test::error_text([&] { quantize(in, directory / "out", as, kNoProgress); });
  };
  EXPECT_EQ(error_of(path, how),
            "quantize: hidden_size must be a multiple of 8, the size of a packed word or group of quantized "
            "weights; got 12");
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
  const QuantizedDirectory f("llama", {4, 32});
  EXPECT_EQ(error_of(f.packed, how),
            "quantize: the input weights must not be quantized; got int4 in groups of 32 (gptq)");
}

TEST(QuantizedFiles, DamagedFilesAreRejected) {
  const QuantizedDirectory f("llama", {4, 32});
  const std::string file = f.packed + "/model.safetensors", name = "model.layers.1.self_attn.k_proj.";
  const StoredTensors good = read_safetensors(file);
  const auto error_of = [&](const std::string& leaf, const Stored& tensor) {
    StoredTensors tensors = good;
    tensors[name + leaf] = tensor;
    std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
    return test::error_text([&] {
      checkpoint::check(f.packed, /*needs_state=*/false);
      const model::DecoderWeights weights(config::load_config(f.packed), comm::Group(), at::kFloat);
      checkpoint::load_weights(f.packed, weights);
    });
  };
  Stored codes = good.at(name + "qweight"), groups = good.at(name + "g_idx"),
         scales = good.at(name + "scales");
  codes.dtype = "F32";
  EXPECT_PRED2(test::contains, error_of("qweight", codes), name + "qweight must be I32; got F32");
  scales.dtype = "I16";
  EXPECT_PRED2(test::contains, error_of("scales", scales),
               name + "scales must be F32, BF16, F16 or F64; got I16");
  scales = good.at(name + "scales");
  scales.bytes.replace(0, 2, "\x00\x7c", 2);
  EXPECT_EQ(error_of("scales", scales), file + ": " + name + "scales must be finite; got inf");
  const float no_half = 0.1f;
  scales.dtype = "F32";
  scales.bytes.clear();
  for (size_t i = 0; i < good.at(name + "scales").bytes.size() / 2; ++i)
    scales.bytes.append(reinterpret_cast<const char*>(&no_half), sizeof(no_half));
  EXPECT_EQ(error_of("scales", scales),
            "model.layers.1.self_attn.qkv_proj.weight: scales must be fp16 numbers; got 0.1");
  groups.bytes[4 * 3] = 1;
  EXPECT_EQ(error_of("g_idx", groups), name + "g_idx: without desc_act column 3 must be in group 0; got 1");
}

/// Damages the group or scale of the last columns, which only the last rank reads.
TEST(QuantizedFiles, DamageThatOneRankReadsIsRejectedOnAllRanks) {
  const QuantizedDirectory f("llama", {4, 8});
  const std::string file = f.packed + "/model.safetensors", name = "model.layers.1.mlp.down_proj.";
  const StoredTensors good = read_safetensors(file);
  const auto expect_rejected = [&](const std::string& leaf, const std::string& last,
                                   const std::string& part) {
    StoredTensors tensors = good;
    std::string& bytes = tensors.at(name + leaf).bytes;
    bytes.replace(bytes.size() - last.size(), last.size(), last);
    std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
    on_ranks(3, [&](const comm::Group& group) {
      const model::DecoderWeights weights(config::load_config(f.packed), group, at::kFloat);
      EXPECT_PRED2(test::contains, test::error_text<base::CollectiveError>([&] {
                     checkpoint::load_weights(f.packed, weights);
                   }),
                   name + leaf + part);
    });
  };
  expect_rejected("g_idx", std::string("\0\0\0\0", 4),
                  ": without desc_act column 103 must be in group 12; got 0");
  expect_rejected("scales", "\xff\xff", " must be finite; got nan");
}

TEST(QuantizedFiles, MayContainAZeroBiasThatTheModelLacks) {
  const QuantizedDirectory f("phi3", {4, 8});
  const std::string file = f.packed + "/model.safetensors", name = "model.layers.0.mlp.down_proj.bias";
  StoredTensors tensors = read_safetensors(file);
  tensors[name] = {"F16", {40}, std::string(80, '\0')};
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  checkpoint::check(f.packed, /*needs_state=*/false);
  tensors[name].bytes[7] = 1;
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  EXPECT_PRED2(test::contains, test::error_text([&] { checkpoint::check(f.packed, /*needs_state=*/false); }),
               "must contain only tensors of the model in config.json; got \"" + name);
}

TEST(QuantizedLoad, UsesLittleMemoryInAdditionToTheWeights) {
  base::install_memory_counter();
  Config config = packable_config();
  config.hidden_size = 1024;
  config.intermediate_size = 4096;  // 33.6 MB of fp32 for gate and up
  config.num_hidden_layers = 1;
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, full_state(config, at::kFloat, 1).tensors);
  const model::DecoderWeights weights(quantized_on_load(config, 4, 32), comm::Group(), at::kFloat);
  base::reset_peak();
  const int64_t before = base::live_bytes();
  checkpoint::load_weights(path, weights);
  EXPECT_LT(base::peak_bytes() - before, 24 << 20);
}

}  // namespace
}  // namespace shardwise::testing::quantized_load_test

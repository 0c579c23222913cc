// Weights quantized while they are read, written quantized and read, cut and put together: at every tp size
// the same codes, those of the whole.
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
using model::Config;
using model::Quantization;

constexpr int kMostRanks = 4;
const auto kNoProgress = [](int64_t, int64_t) {};

struct Case {
  int64_t bits, group_size;
};
const std::vector<Case> kCases{{8, 0}, {8, 8}, {4, 0}, {4, 8}, {4, 32}};

std::string name_of(const std::string& what, const Case& c, int ranks) {
  return " of " + std::to_string(ranks) + ", " + what + " " + std::to_string(c.bits) + " bits in groups of " +
         std::to_string(c.group_size);
}

TEST(QuantizedLoad, ShardsAreSlicesOfTheWhole) {
  for (const std::string family : {"llama", "phi3", "gpt2"}) {
    const Config config = uneven_config(/*is_tied=*/false, family);  // sizes that no packed file holds
    const WholeState whole = whole_state(config, at::kFloat, /*seed=*/11);
    const TemporaryDirectory directory;
    const std::string path = put_weights(directory.path(), config, whole.tensors);
    for (const Case& c : kCases) {
      const Config wanted = converting(config, c.bits, c.group_size);
      const Tensors expected = quantized_tensors(wanted, whole.tensors);
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        on_ranks(ranks, [&](const comm::Group& group) {
          const model::DecoderWeights weights(wanted, group, at::kFloat);
          checkpoint::load_weights(path, weights);
          expect_slices(weights, expected, name_of(family, c, ranks));
        });
      }
    }
  }
}

/// Qwen2-72B's ffn: 231 groups of 128.
TEST(QuantizedLoad, DealsGroupsThatTheRanksDoNotDivide) {
  Config config = uneven_config();
  config.intermediate_size = 29568;
  config.num_hidden_layers = 1;
  const WholeState whole = whole_state(config, at::kFloat, /*seed=*/17);
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, whole.tensors);
  const Config wanted = converting(config, 4, 128);
  const Tensors expected = quantized_tensors(wanted, whole.tensors);
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(wanted, group, at::kFloat);
      const bool has_more = group.rank() < 231 % ranks;
      EXPECT_EQ(weights.layout().ffn.range(group.rank()).size(), (231 / ranks + has_more) * 128);
      checkpoint::load_weights(path, weights);
      expect_slices(weights, expected, " of " + std::to_string(ranks));
    });
  }
}

TEST(QuantizedLoad, FromShardsThatAreCutElsewhere) {
  const Config config = uneven_config();
  const WholeState whole = whole_state(config, at::kFloat, /*seed=*/12);
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, whole.tensors), cut = directory / "cut";
  checkpoint::shard(path, cut, 3, kNoProgress);
  const Config wanted = converting(config, 4, 8);  // 101 ffn columns: 34, 34, 33 there, 40, 32, 29 here
  const Tensors expected = quantized_tensors(wanted, whole.tensors);
  on_ranks(3, [&](const comm::Group& group) {
    const model::DecoderWeights weights(wanted, group, at::kFloat);
    checkpoint::load_weights(cut, weights);
    expect_slices(weights, expected, " from shards");
  });
}

TEST(QuantizedLoad, RefusesWhatIsNoNumber) {
  const Config config = uneven_config();
  WholeState whole = whole_state(config, at::kFloat, /*seed=*/13);
  whole.tensors.at("model.layers.1.mlp.down_proj.weight")[3][70] = std::numeric_limits<float>::infinity();
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, whole.tensors);
  const model::DecoderWeights weights(converting(config, 8, 0), comm::Group(), at::kFloat);
  EXPECT_EQ(
      test::error_text([&] { checkpoint::load_weights(path, weights); }),
      "model.layers.1.mlp.down_proj.weight: must hold numbers of at most 8.31901e+06 to be quantized, so "
      "that their scales fit fp16; got inf");
}

/// Columns that ranks share, and rows that one rank alone holds.
TEST(QuantizedLoad, RefusesOnEveryRankWhatOneFinds) {
  const Config config = uneven_config();
  for (const std::string name : {"mlp.down_proj", "self_attn.q_proj"}) {
    WholeState whole = whole_state(config, at::kFloat, /*seed=*/13);
    whole.tensors.at("model.layers.1." + name + ".weight")[3][5] = std::numeric_limits<float>::infinity();
    const TemporaryDirectory directory;
    const std::string path = put_weights(directory.path(), config, whole.tensors);
    on_ranks(3, [&](const comm::Group& group) {
      const model::DecoderWeights weights(converting(config, 8, 8), group, at::kFloat);
      EXPECT_PRED2(test::contains,
                   test::error_text<base::CollectiveError>([&] { checkpoint::load_weights(path, weights); }),
                   "must hold numbers of at most");
    });
  }
}

/// A directory of ordinary weights, and one of its weights in codes.
struct QuantizedDirectory {
  QuantizedDirectory(const std::string& family, const Case& c, bool with_tables = false)
      : QuantizedDirectory(packable_config(family), c, with_tables) {}
  QuantizedDirectory(Config of, const Case& c, bool with_tables) : config(std::move(of)) {
    config.vocab_size = 24;
    whole = whole_state(config, at::kFloat, /*seed=*/14).tensors;
    dense = put_weights(directory.path(), config, whole);
    how = {.files = Quantization::Files::gptq, .bits = c.bits, .group_size = c.group_size};
    how.head = how.embeddings = with_tables;
    packed = directory / "packed";
    written = quantize(dense, packed, how, kNoProgress);
  }

  TemporaryDirectory directory;
  Config config;
  Tensors whole;
  Quantization how;
  std::string dense, packed;
  checkpoint::Written written;
};

/// The codes, scales and zeros of both, parameter by parameter.
void expect_same_matrices(const model::DecoderWeights& a, const model::DecoderWeights& b,
                          const std::string& where) {
  ASSERT_EQ(a.roles().size(), b.roles().size());
  for (size_t i = 0; i < a.roles().size(); ++i) {
    const parallel::Parameter &p = *a.roles()[i].parameter, &q = *b.roles()[i].parameter;
    ASSERT_EQ(p.quantized != nullptr, q.quantized != nullptr) << p.name;
    if (!p.quantized) {
      EXPECT_TRUE(same_bits(p.value.detach(), q.value.detach())) << p.name << where;
      continue;
    }
    EXPECT_TRUE(at::equal(dequantized(*p.quantized), dequantized(*q.quantized))) << p.name << where;
    EXPECT_TRUE(at::equal(p.quantized->scales, q.quantized->scales)) << p.name << where;
    EXPECT_TRUE(at::equal(p.quantized->zeros, q.quantized->zeros)) << p.name << where;
  }
}

/// Read from the codes, and made while the numbers are read.
void expect_read_as_made(const QuantizedDirectory& f, const Case& c, int ranks) {
  const Config stored = model::load_config(f.packed);
  on_ranks(ranks, [&](const comm::Group& group) {
    const model::DecoderWeights read(stored, group, at::kFloat);
    checkpoint::load_weights(f.packed, read);
    const model::DecoderWeights made(converting(f.config, c.bits, c.group_size), group, at::kFloat);
    checkpoint::load_weights(f.dense, made);
    expect_same_matrices(read, made, name_of(f.config.model_type, c, ranks));
  });
}

TEST(QuantizedFiles, GiveWhatConvertingWhileLoadingGives) {
  for (const std::string family : {"llama", "phi3", "gpt2"}) {
    for (const Case& c : kCases) {
      const QuantizedDirectory f(family, c);
      ASSERT_EQ(model::load_config(f.packed).quantization, f.how);
      checkpoint::check(f.packed, /*needs_state=*/false);
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) expect_read_as_made(f, c, ranks);
    }
  }
}

/// One word of the ffn's columns on six ranks: 4, or 8 that are dealt as one group.
TEST(QuantizedFiles, LeaveRanksWithoutColumns) {
  Config config = packable_config();
  for (const Case& c : kCases) {
    config.intermediate_size = 32 / c.bits;
    const QuantizedDirectory f(config, c, /*with_tables=*/false);
    const std::string cut = f.directory / "cut", merged = f.directory / "merged";
    checkpoint::shard(f.packed, cut, 6, kNoProgress);
    checkpoint::merge(cut, merged, kNoProgress);
    EXPECT_EQ(read_safetensors(merged + "/model.safetensors"),
              read_safetensors(f.packed + "/model.safetensors"));
    for (const int ranks : {2, 6}) expect_read_as_made(f, c, ranks);
  }
}

TEST(QuantizedFiles, HoldHeadAndEmbeddingsToo) {
  const QuantizedDirectory f("llama", {4, 8}, /*with_tables=*/true);
  const Config stored = model::load_config(f.packed);
  const Tensors expected = quantized_tensors(stored, f.whole);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const model::DecoderWeights weights(stored, group, at::kFloat);
      checkpoint::load_weights(f.packed, weights);
      EXPECT_TRUE(weights.roles().front().parameter->quantized);
      EXPECT_TRUE(weights.roles().back().parameter->quantized);
      expect_slices(weights, expected, " with tables");
    });
  }
}

/// The published layout, taken apart without the code under test.
TEST(QuantizedFiles, LieAsGptqDoes) {
  const QuantizedDirectory f("llama", {4, 32});
  const StoredTensors tensors = read_safetensors(f.packed + "/model.safetensors");
  const std::string module = "model.layers.0.mlp.down_proj.";
  const Stored &codes = tensors.at(module + "qweight"), &zeros = tensors.at(module + "qzeros"),
               &scales = tensors.at(module + "scales"), &groups = tensors.at(module + "g_idx");
  EXPECT_EQ(codes.dtype + zeros.dtype + scales.dtype + groups.dtype, "I32I32F16I32");
  EXPECT_EQ(codes.shape, (std::vector<int64_t>{13, 40}));  // 104 columns, eight a word
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
  const at::Tensor expected = quantized_tensors(model::load_config(f.packed), f.whole).at(module + "weight");
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

TEST(QuantizedFiles, AreCutAndPutTogetherAgain) {
  for (const std::string family : {"llama", "phi3"}) {
    const QuantizedDirectory f(family, {4, 8});
    const Config stored = model::load_config(f.packed);
    for (const int tp : {2, 3}) {
      const std::string cut = f.directory / ("cut" + std::to_string(tp)), merged = cut + "-merged";
      checkpoint::shard(f.packed, cut, tp, kNoProgress);
      checkpoint::merge(cut, merged, kNoProgress);
      EXPECT_EQ(read_safetensors(merged + "/model.safetensors"),
                read_safetensors(f.packed + "/model.safetensors"));
      for (const int ranks : {tp, 4}) {
        on_ranks(ranks, [&](const comm::Group& group) {
          const model::DecoderWeights of_cut(stored, group, at::kFloat), of_whole(stored, group, at::kFloat);
          checkpoint::load_weights(cut, of_cut);
          checkpoint::load_weights(f.packed, of_whole);
          expect_same_matrices(of_cut, of_whole, " from shards");
        });
      }
    }
  }
}

TEST(QuantizedFiles, AreListedWithWhatEachRankHolds) {
  const QuantizedDirectory f("llama", {4, 32});
  const auto found = checkpoint::inspect(f.packed, 2);
  EXPECT_EQ(found.parameters, model::parameter_count(f.config));
  for (const auto& tensor : found.tensors) {
    if (tensor.name != "model.layers.0.self_attn.o_proj.scales") continue;
    EXPECT_EQ(tensor.rank_shapes, (std::vector<std::vector<int64_t>>{{1, 40}, {2, 40}}));  // 24 of 48 columns
    EXPECT_EQ(tensor.rule, "heads in blocks, dim 0");
  }
  const auto ordinary = checkpoint::inspect(f.dense, 2);
  EXPECT_LT(found.bytes, ordinary.bytes / 2);
}

TEST(QuantizedFiles, OfSizesThatTheyCannotHoldAreRefused) {
  const TemporaryDirectory directory;
  const Config config = uneven_config();
  const std::string path = put_weights(directory.path(), config, whole_state(config, at::kFloat, 1).tensors);
  const Quantization how{.files = Quantization::Files::gptq, .bits = 4, .group_size = 32};
  const auto said = [&](const std::string& in, const Quantization& as) {
    return test::error_text([&] { quantize(in, directory / "out", as, kNoProgress); });
  };
  EXPECT_EQ(said(path, how),
            "quantize: hidden_size must be a multiple of 8, for quantized files keep so many in a word or a "
            "group; got 12");
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
  const QuantizedDirectory f("llama", {4, 32});
  EXPECT_EQ(said(f.packed, how),
            "quantize: the weights must be ordinary ones; got int4 in groups of 32 (gptq)");
}

TEST(QuantizedFiles, ThatAreDamagedAreRefused) {
  const QuantizedDirectory f("llama", {4, 32});
  const std::string file = f.packed + "/model.safetensors", name = "model.layers.1.self_attn.k_proj.";
  const StoredTensors good = read_safetensors(file);
  const auto said = [&](const std::string& leaf, const Stored& tensor) {
    StoredTensors tensors = good;
    tensors[name + leaf] = tensor;
    std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
    return test::error_text([&] {
      checkpoint::check(f.packed, /*needs_state=*/false);
      const model::DecoderWeights weights(model::load_config(f.packed), comm::Group(), at::kFloat);
      checkpoint::load_weights(f.packed, weights);
    });
  };
  Stored codes = good.at(name + "qweight"), groups = good.at(name + "g_idx"),
         scales = good.at(name + "scales");
  codes.dtype = "F32";
  EXPECT_PRED2(test::contains, said("qweight", codes), name + "qweight must be I32; got F32");
  scales.dtype = "I16";
  EXPECT_PRED2(test::contains, said("scales", scales),
               name + "scales must be F32, BF16, F16 or F64; got I16");
  scales = good.at(name + "scales");
  scales.bytes.replace(0, 2, "\x00\x7c", 2);
  EXPECT_EQ(said("scales", scales), file + ": " + name + "scales must hold finite numbers; got inf");
  groups.bytes[4 * 3] = 1;
  EXPECT_EQ(said("g_idx", groups), name + "g_idx: without desc_act column 3 must be in group 0; got 1");
}

/// The last columns' group or scale, which the last rank alone reads.
TEST(QuantizedFiles, OfWhichOneRankReadsWhatCannotBeAreRefusedByAll) {
  const QuantizedDirectory f("llama", {4, 8});
  const std::string file = f.packed + "/model.safetensors", name = "model.layers.1.mlp.down_proj.";
  const StoredTensors good = read_safetensors(file);
  const auto expect_refused = [&](const std::string& leaf, const std::string& last, const std::string& part) {
    StoredTensors tensors = good;
    std::string& bytes = tensors.at(name + leaf).bytes;
    bytes.replace(bytes.size() - last.size(), last.size(), last);
    std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
    on_ranks(3, [&](const comm::Group& group) {
      const model::DecoderWeights weights(model::load_config(f.packed), group, at::kFloat);
      EXPECT_PRED2(test::contains, test::error_text<base::CollectiveError>([&] {
                     checkpoint::load_weights(f.packed, weights);
                   }),
                   name + leaf + part);
    });
  };
  expect_refused("g_idx", std::string("\0\0\0\0", 4),
                 ": without desc_act column 103 must be in group 12; got 0");
  expect_refused("scales", "\xff\xff", " must hold finite numbers; got nan");
}

TEST(QuantizedFiles, MayHoldABiasOfZerosThatTheModelLacks) {
  const QuantizedDirectory f("phi3", {4, 8});
  const std::string file = f.packed + "/model.safetensors", name = "model.layers.0.mlp.down_proj.bias";
  StoredTensors tensors = read_safetensors(file);
  tensors[name] = {"F16", {40}, std::string(80, '\0')};
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  checkpoint::check(f.packed, /*needs_state=*/false);
  tensors[name].bytes[7] = 1;
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  EXPECT_PRED2(test::contains, test::error_text([&] { checkpoint::check(f.packed, /*needs_state=*/false); }),
               "must hold only tensors that config.json has a place for; got " + name);
}

TEST(QuantizedLoad, KeepsLittleBesideTheCodes) {
  base::install_memory_counter();
  Config config = packable_config();
  config.hidden_size = 1024;
  config.intermediate_size = 4096;  // 33.6 MB of fp32 for gate and up
  config.num_hidden_layers = 1;
  const TemporaryDirectory directory;
  const std::string path = put_weights(directory.path(), config, whole_state(config, at::kFloat, 1).tensors);
  const model::DecoderWeights weights(converting(config, 4, 32), comm::Group(), at::kFloat);
  base::reset_peak();
  const int64_t before = base::live_bytes();
  checkpoint::load_weights(path, weights);
  EXPECT_LT(base::peak_bytes() - before, 24 << 20);
}

}  // namespace
}  // namespace shardwise::testing::quantized_load_test

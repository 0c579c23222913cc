// Panel files: mapped weights are those that were written, and damaged files are refused.
#include "shardwise/checkpoint/panel_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "shardwise/base/isa.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/checkpoint/inspect.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::panel_files_test {
namespace {

using checkpoint::PanelOptions;
using config::Config;
using model::DecoderWeights;
using model::WeightUse;
using test::contains;

constexpr size_t kAlignment = 64;

struct Case {
  const char* name;
  const char* family;
  at::ScalarType dtype;
  int64_t bits, group_size;  // 16: not quantized
};

class PanelFiles : public ::testing::TestWithParam<Case> {};

Config config_of(const Case& c) {
  Config config = wide_config(c.family, /*is_tied=*/false);
  if (c.bits == 16) return config;
  config = quantized_on_load(config, c.bits, c.group_size);
  config.quantization->lm_head = config.quantization->embeddings = config.quantization->int8_head = true;
  return config;
}

TEST_P(PanelFiles, MapTheWeightsThatWereWritten) {
  const Config config = config_of(GetParam());
  const TemporaryDirectory directory;
  const std::string source = put_weights(directory.path(), config::dense(config),
                                         full_state(config::dense(config), at::kFloat, /*seed=*/41).tensors);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const DecoderWeights packed(config, group, GetParam().dtype, WeightUse::inference),
          mapped(config, group, GetParam().dtype, WeightUse::inference);
      checkpoint::load_weights(source, packed);
      expect_mapped_like(packed, mapped, source, directory / ("panels-" + std::to_string(ranks)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PanelFiles,
                         ::testing::Values(Case{"bf16", "llama", at::kBFloat16, 16, 0},
                                           Case{"bf16_gpt2", "gpt2", at::kBFloat16, 16, 0},
                                           Case{"fp32", "llama", at::kFloat, 16, 0},
                                           Case{"int8", "phi3", at::kBFloat16, 8, 0},
                                           Case{"int8_groups", "llama", at::kFloat, 8, 32},
                                           Case{"int4", "llama", at::kBFloat16, 4, 32},
                                           Case{"int4_cut_groups", "gpt2", at::kFloat, 4, 40}),
                         [](const auto& test) { return std::string(test.param.name); });

/// Replaces an element of an int32 tensor.
void put(Stored& tensor, size_t index, int32_t value) {
  tensor.bytes.replace(index * 4, 4, std::string(reinterpret_cast<const char*>(&value), 4));
}

/// A model with int4 weights of one rank, packed from a directory.
class OneRank : public ::testing::Test {
 protected:
  OneRank() {
    const DecoderWeights weights = new_weights();
    checkpoint::load_weights(source_, weights);
    checkpoint::write_panel_files(source_, out_, weights, options_, [](int64_t, int64_t) {});
  }

  DecoderWeights new_weights() const { return {config_, comm::Group(), at::kFloat, WeightUse::inference}; }

  /// Returns the error of a load of the files with one tensor changed.
  std::string error_with(const std::string& name, const std::function<void(Stored&)>& change) const {
    StoredTensors tensors = read_safetensors(file_);
    change(tensors.at(name));
    return error_of(safetensors_of(tensors, kAlignment));
  }
  /// Returns the error of a load with the file `bytes`, and restores the file.
  std::string error_of(const std::string& bytes) const {
    const std::string good = test::contents(file_);
    std::ofstream(file_, std::ios::binary) << bytes;
    const DecoderWeights weights = new_weights();
    const std::string error =
        test::error_text<base::CollectiveError>([&] { checkpoint::load_weights(out_, weights); });
    std::ofstream(file_, std::ios::binary) << good;
    return error;
  }

  const Config config_ = quantized_on_load(wide_config("llama", /*is_tied=*/false), 4, 32);
  const TemporaryDirectory directory_;
  const std::string source_ = put_weights(directory_.path(), config::dense(config_),
                                          full_state(config::dense(config_), at::kFloat, 43).tensors),
                    out_ = directory_ / "out", file_ = out_ + "/panels-0-of-1.safetensors",
                    weight_ = "model.layers.1.mlp.down_proj.weight";
  const PanelOptions options_{1, "fp32", "int4", 32, "none"};
};

TEST_F(OneRank, AllocatesNoMemoryForMappedWeights) {
  base::install_memory_counter();
  const int64_t before = base::live_bytes();
  const DecoderWeights weights = new_weights();
  base::reset_peak();
  const checkpoint::LoadStats stats = checkpoint::load_weights(out_, weights);
  int64_t dense = 0;
  for (const nn::UsedParameter& used : weights.used_parameters())
    if (!used.parameter->panels) dense += used.parameter->bytes();
  EXPECT_GT(stats.mapped_bytes, 50'000);
  EXPECT_LT(base::peak_bytes() - before, dense + 4096);
}

TEST_F(OneRank, IndexHasTheOptions) {
  const PanelOptions found = checkpoint::check_panel_files(out_);
  EXPECT_EQ(found.tp, 1);
  EXPECT_EQ(found.dtype, "fp32");
  EXPECT_EQ(found.quantize, "int4");
  EXPECT_EQ(found.group_size, 32);
  EXPECT_EQ(found.head, "none");
  EXPECT_EQ(names_in(out_),
            (std::vector<std::string>{"config.json", "panels-0-of-1.safetensors", "shardwise.panels.json"}));
}

TEST_F(OneRank, OtherReadersRefuseTheDirectory) {
  const auto refused = [&](const std::function<void()>& read) {
    EXPECT_PRED2(contains, test::error_text(read), "packed for generate and eval");
  };
  refused([&] { checkpoint::check(out_, /*needs_state=*/false); });
  refused([&] { checkpoint::inspect(out_, 1); });
  refused([&] { checkpoint::merge(out_, directory_ / "merged", [](int64_t, int64_t) {}); });
}

TEST_F(OneRank, DamagedIndexesAreRefused) {
  const std::string index = out_ + "/shardwise.panels.json";
  const nlohmann::json good = nlohmann::json::parse(test::contents(index));
  const auto error_with = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[field] = value;
    std::ofstream(index) << changed;
    return test::error_text([&] { checkpoint::check_panel_files(out_); });
  };
  EXPECT_EQ(error_with("version", 2),
            index + ": must be shardwise.panels of version 1; got shardwise.panels of version 2");
  EXPECT_EQ(error_with("tp", 0), index + ": tp must be at least 1; got 0");
  EXPECT_PRED2(contains, error_with("tp", 2), "panels-0-of-2.safetensors");
  EXPECT_EQ(error_with("dtype", "fp16"), index + ": dtype must be fp32 or bf16; got fp16");
}

TEST_F(OneRank, DamagedFilesAreRefused) {
  const std::string layout = weight_ + ".layout", where = file_ + ": ";
  const std::string other_layout = " must be the layout of the weight in config.json; got another one";
  struct Change {
    size_t index;
    int32_t value;
  };
  const std::string refused = where + layout + other_layout;
  for (const Change& change : {Change{0, 8}, Change{1, 2}, Change{2, 3}, Change{2, -4}}) {
    EXPECT_EQ(error_with(layout, [&](Stored& tensor) { put(tensor, change.index, change.value); }), refused)
        << change.index;
  }
  EXPECT_EQ(error_with(layout,
                       [](Stored& tensor) {
                         tensor.shape = {1};
                         tensor.bytes.resize(4);
                       }),
            refused);
  EXPECT_PRED2(contains,
               error_with(layout,
                          [](Stored& tensor) {
                            tensor.shape = {1, tensor.shape[0]};
                          }),
               layout + " must be I32 of shape [2]; got I32 of shape [1, ");
  EXPECT_PRED2(contains, error_with(weight_ + ".panels", [](Stored& tensor) { tensor.dtype = "F64"; }),
               weight_ + ".panels must be I64 of shape [1, ");
  EXPECT_PRED2(contains, error_with("model.norm.weight", [](Stored& tensor) { tensor.dtype = "I32"; }),
               "model.norm.weight must be F32 of shape [64]; got I32 of shape [64]");
  StoredTensors more = read_safetensors(file_);
  more["more"] = {"I32", {1}, "four"};
  EXPECT_PRED2(contains, error_of(safetensors_of(more, kAlignment)),
               "tensors of the model in config.json; got ");
  StoredTensors less = read_safetensors(file_);
  less.erase(weight_ + ".panels");
  EXPECT_PRED2(contains, error_of(safetensors_of(less, kAlignment)),
               weight_ + " must be packed for this processor");
  EXPECT_PRED2(contains, error_of(safetensors_of(read_safetensors(file_), 8)),
               " must begin at a multiple of 64 bytes; got ");
  const std::string all = test::contents(file_);
  EXPECT_PRED2(contains, error_of(all.substr(0, all.size() - 8)), "truncated");
}

/// Products read the input at the columns of the order: none may be out of bounds or missing.
TEST(PanelOrder, MustHaveEveryColumnOnce) {
  Config config = quantized_on_load(wide_config("llama", /*is_tied=*/false), 4, 32);
  config.intermediate_size = 100;  // 4 columns in the last group: padded to a line of 8
  const TemporaryDirectory directory;
  const std::string source = put_weights(directory.path(), config::dense(config),
                                         full_state(config::dense(config), at::kFloat, 47).tensors);
  const DecoderWeights weights(config, comm::Group(), at::kFloat, WeightUse::inference);
  checkpoint::load_weights(source, weights);
  const std::string out = directory / "out", file = out + "/panels-0-of-1.safetensors",
                    name = "model.layers.0.mlp.down_proj.weight.column_order";
  checkpoint::write_panel_files(source, out, weights, {1, "fp32", {}, {}, {}}, [](int64_t, int64_t) {});
  const StoredTensors good = read_safetensors(file);
  ASSERT_EQ(good.at(name).shape, std::vector<int64_t>{104});
  const auto error_with = [&](const std::function<void(StoredTensors&)>& change) {
    StoredTensors tensors = good;
    change(tensors);
    std::ofstream(file, std::ios::binary) << safetensors_of(tensors, kAlignment);
    return test::error_text<base::CollectiveError>([&] { checkpoint::load_weights(out, weights); });
  };
  const std::string rule = file + ": " + name + " must have every column of the weight once; got others";
  for (const int32_t column : {-1, 0, 100, 101}) {  // for column 1
    EXPECT_EQ(error_with([&](StoredTensors& tensors) { put(tensors.at(name), 1, column); }), rule) << column;
  }
  EXPECT_EQ(error_with([&](StoredTensors& tensors) { tensors.erase(name); }), rule);
}

TEST(PanelProcessors, MustPackTheSameWeights) {
  if (base::best_isa() < base::Isa::avx512_bf16) GTEST_SKIP() << "this processor packs no bf16 weights";
  const Config config = wide_config("llama", /*is_tied=*/false);
  const TemporaryDirectory directory;
  const std::string source =
      put_weights(directory.path(), config, full_state(config, at::kFloat, /*seed=*/53).tensors);
  const DecoderWeights packed(config, comm::Group(), at::kBFloat16, WeightUse::inference),
      dense(config, comm::Group(), at::kBFloat16);
  checkpoint::load_weights(source, packed);
  const std::string out = directory / "out";
  checkpoint::write_panel_files(source, out, packed, {1, "bf16", {}, {}, {}}, [](int64_t, int64_t) {});
  EXPECT_PRED2(contains,
               test::error_text<base::CollectiveError>([&] { checkpoint::load_weights(out, dense); }),
               "must be a tensor for this processor; got panels; run shardwise shard --packed");
}

TEST(PanelFailures, LeaveNoDirectory) {
  const Config config = quantized_on_load(wide_config("llama", /*is_tied=*/false), 4, 32);
  const TemporaryDirectory directory;
  const std::string source = put_weights(directory / "in", config::dense(config),
                                         full_state(config::dense(config), at::kFloat, 59).tensors);
  for (int ranks = 1; ranks <= 2; ++ranks) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const DecoderWeights weights(config, group, at::kFloat, WeightUse::inference);
      checkpoint::load_weights(source, weights);
      const auto fail_on_last_rank = [&](int64_t, int64_t) {
        if (group.rank() + 1 == group.size()) throw std::runtime_error("cancelled");
      };
      EXPECT_ANY_THROW(checkpoint::write_panel_files(source, directory / "out", weights,
                                                     {ranks, "fp32", {}, {}, {}}, fail_on_last_rank));
    });
    EXPECT_EQ(names_in(directory.path()), std::vector<std::string>{"in"}) << ranks;
  }
}

}  // namespace
}  // namespace shardwise::testing::panel_files_test

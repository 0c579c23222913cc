// Weights that generation leaves in their files have the values of loaded ones, and are checked like them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "shardwise/base/isa.h"
#include "shardwise/checkpoint/shard.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::map_rows_test {
namespace {

using model::DecoderWeights;
using model::WeightUse;

/// Writes a directory with weights in `dtype` and returns its path.
std::string put(const std::string& directory, const config::Config& config, at::ScalarType dtype) {
  save_full(directory, config, full_state(config, dtype, /*seed=*/51), /*ranks=*/1, /*step=*/1);
  return checkpoint::resolve(directory);
}

bool is_mapped(const parallel::Parameter& weight) {
  return weight.panels && weight.panels->mapped_rows;
}

/// Maps `path`, and expects the values of a load, and that those packed weights are mapped that `expected`
/// names.
void expect_mapped(const std::string& path, const config::Config& config, const comm::Group& group,
                   const std::function<bool(const std::string& name)>& expected) {
  const DecoderWeights mapped(config, group, at::kBFloat16, WeightUse::inference),
      loaded(config, group, at::kBFloat16, WeightUse::inference);
  const checkpoint::LoadStats stats = checkpoint::map_weights(path, mapped);
  EXPECT_EQ(checkpoint::load_weights(path, loaded).mapped_bytes, 0);
  int64_t mapped_bytes = 0;
  for (size_t i = 0; i < mapped.used_parameters().size(); ++i) {
    const parallel::Parameter &p = *mapped.used_parameters()[i].parameter,
                              &q = *loaded.used_parameters()[i].parameter;
    EXPECT_FALSE(is_mapped(q)) << q.name;
    EXPECT_EQ(is_mapped(p), p.panels && expected(p.name)) << p.name << " of " << group.size();
    if (is_mapped(p)) mapped_bytes += p.size(0) * p.size(1) * 2;
    if (p.panels) {
      EXPECT_TRUE(same_bits(dequantized(*p.panels), dequantized(*q.panels))) << p.name;
    } else {
      EXPECT_TRUE(same_bits(p.value.detach(), q.value.detach())) << p.name;
    }
  }
  EXPECT_EQ(stats.mapped_bytes, mapped_bytes);
  // On more ranks the embedding has too few rows to be packed.
  if (base::best_isa() < base::Isa::avx512_bf16 || group.size() > 2) return;
  EXPECT_EQ(mapped_bytes > 0, expected("model.embed_tokens.weight"));
}

bool is_transposed(const std::string& name) {
  return name.ends_with("_proj.weight");
}

class MappedWeights : public ::testing::TestWithParam<const char*> {};

TEST_P(MappedWeights, HaveTheValuesOfALoad) {
  for (const bool is_tied : {false, true}) {
    const config::Config config = wide_config(GetParam(), is_tied);
    const TemporaryDirectory directory;
    const std::string path = put(directory.path(), config, at::kBFloat16);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      on_ranks(ranks, [&](const comm::Group& group) {
        expect_mapped(path, config, group, [&](const std::string& name) {
          return config.model_type != "gpt2" || !is_transposed(name);
        });
      });
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, MappedWeights, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(MappedWeights, AreOfBf16Files) {
  const config::Config config = wide_config("llama", /*is_tied=*/false);
  const TemporaryDirectory directory;
  const std::string path = put(directory.path(), config, at::kFloat);
  on_ranks(2, [&](const comm::Group& group) {
    expect_mapped(path, config, group, [](const std::string&) { return false; });
  });
}

/// Files for as many ranks have each row of a shard in one piece; those for other numbers cut columns.
TEST(MappedWeights, AreOfShardedFilesIfColumnsAreNotCut) {
  const config::Config config = wide_config("llama", /*is_tied=*/false);
  const TemporaryDirectory directory;
  const std::string path = put(directory.path(), config, at::kBFloat16), sharded = directory / "sharded";
  checkpoint::shard(path, sharded, /*tp=*/2, [](int64_t, int64_t) {});
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      expect_mapped(sharded, config, group, [&](const std::string& name) {
        const bool cuts_columns = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
        return ranks == 2 || !cuts_columns;
      });
    });
  }
}

/// Only one rank has the value, and every rank throws the error of a load.
TEST(MappedWeights, NameFileAndTensorOfNanAndInf) {
  const config::Config config = wide_config("llama", /*is_tied=*/false);
  const TemporaryDirectory directory;
  const std::string path = put(directory.path(), config, at::kBFloat16);
  const std::string file = path + "/model.safetensors", name = "model.layers.1.mlp.up_proj.weight";
  StoredTensors tensors = read_safetensors(file);
  Stored& weight = tensors.at(name);
  ASSERT_EQ(weight.dtype, "BF16");
  weight.bytes.replace(weight.bytes.size() - 2, 2, std::string("\x80\xff", 2));  // in the last row, -inf
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const DecoderWeights weights(config, group, at::kBFloat16, WeightUse::inference);
      EXPECT_EQ(test::error_text<base::CollectiveError>([&] { checkpoint::map_weights(path, weights); }),
                file + ": " + name + " must be finite; got -inf");
    });
  }
}

}  // namespace
}  // namespace shardwise::testing::map_rows_test

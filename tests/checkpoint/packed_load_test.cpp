// Loading weights for inference: packed in bf16, they have the values of a load for training.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <fstream>

#include "shardwise/base/isa.h"
#include "shardwise/infer/evaluate.h"
#include "tests/checkpoint/quantized_model.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::packed_load_test {
namespace {

using model::DecoderWeights;
using model::WeightUse;

/// Expects the packed weights to have the values of dense ones. Returns how many are packed.
int expect_same_values(const DecoderWeights& packed, const DecoderWeights& dense, const std::string& where) {
  int count = 0;
  for (size_t i = 0; i < packed.used_parameters().size(); ++i) {
    const parallel::Parameter &p = *packed.used_parameters()[i].parameter,
                              &q = *dense.used_parameters()[i].parameter;
    EXPECT_EQ(q.panels, nullptr) << q.name;
    EXPECT_FALSE(p.is_quantized()) << p.name;
    count += p.panels != nullptr;
    at::Tensor values = p.panels ? at::empty({p.size(0), p.size(1)}, at::kBFloat16) : p.value.detach();
    if (p.panels) dequantize_out(values, *p.panels, {0, p.size(0)});
    EXPECT_TRUE(same_bits(values, q.value.detach())) << p.name << where;
  }
  return count;
}

class PackedLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(PackedLoad, HasTheValuesOfADenseLoad) {
  for (const bool is_tied : {false, true}) {
    const config::Config config = wide_config(GetParam(), is_tied);
    const TemporaryDirectory directory;
    const std::string path =
        put_weights(directory.path(), config, full_state(config, at::kFloat, /*seed=*/31).tensors);
    for (int ranks = 1; ranks <= 3; ++ranks) {
      on_ranks(ranks, [&](const comm::Group& group) {
        const std::string where = " on " + std::to_string(ranks) + " ranks";
        DecoderWeights packed(config, group, at::kBFloat16, WeightUse::inference),
            dense(config, group, at::kBFloat16);
        checkpoint::load_weights(path, packed);
        checkpoint::load_weights(path, dense);
        const int count = expect_same_values(packed, dense, where);
        EXPECT_EQ(count > 0, base::best_isa() >= base::Isa::avx512_bf16) << where;
        packed.initialize_(/*seed=*/3);
        dense.initialize_(/*seed=*/3);
        expect_same_values(packed, dense, where + ", random");
      });
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, PackedLoad, ::testing::Values("llama", "phi3", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PackedLoads, ArePackedForInferenceInBf16Only) {
  const config::Config config = wide_config("llama", /*is_tied=*/false);
  const auto count = [&](at::ScalarType dtype, WeightUse use) {
    const DecoderWeights weights(config, comm::Group(), dtype, use);
    return std::ranges::count_if(weights.used_parameters(), [](const nn::UsedParameter& used) {
      return used.parameter->panels != nullptr;
    });
  };
  EXPECT_EQ(count(at::kBFloat16, WeightUse::training), 0);
  EXPECT_EQ(count(at::kFloat, WeightUse::inference), 0);
  EXPECT_EQ(count(at::kDouble, WeightUse::inference), 0);
}

/// Only one rank reads the value, and every rank throws the same error.
TEST(PackedLoads, NanAndInfNameFileAndTensor) {
  const config::Config config = wide_config("llama", /*is_tied=*/false);
  const TemporaryDirectory directory;
  const std::string path =
      put_weights(directory.path(), config, full_state(config, at::kFloat, /*seed=*/32).tensors);
  const std::string file = path + "/model.safetensors", name = "model.layers.1.mlp.up_proj.weight";
  StoredTensors tensors = read_safetensors(file);
  Stored& weight = tensors.at(name);
  ASSERT_EQ(weight.dtype, "F32");
  weight.bytes.replace(weight.bytes.size() - 4, 4,
                       std::string("\x00\x00\x80\xff", 4));  // in the last row, -inf
  std::ofstream(file, std::ios::binary) << safetensors_of(tensors);
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const DecoderWeights weights(config, group, at::kBFloat16, WeightUse::inference);
      EXPECT_EQ(test::error_text<base::CollectiveError>([&] { checkpoint::load_weights(path, weights); }),
                file + ": " + name + " must be finite; got -inf");
    });
  }
}

}  // namespace
}  // namespace shardwise::testing::packed_load_test

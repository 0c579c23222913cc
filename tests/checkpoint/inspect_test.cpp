// Compares inspect with values computed by hand.
#include "shardwise/checkpoint/inspect.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/checkpoint/fixture.h"
#include "tests/support/error_text.h"

namespace shardwise::testing::inspect_test {
namespace {

using checkpoint::Inspection, checkpoint::InspectedTensor;
using Shapes = std::vector<std::vector<int64_t>>;
using test::contains, test::error_text;

class Inspect : public ::testing::Test {
 protected:
  Inspection inspect(const std::string& family, int tp) const {
    const config::Config config = uneven_config(/*is_tied=*/false, family);
    save_full(dir_.path(), config, full_state(config, at::kBFloat16, /*seed=*/1), /*ranks=*/1, /*step=*/1);
    return checkpoint::inspect(dir_ / "step-1", tp);
  }

  static InspectedTensor find(const Inspection& found, const std::string& name) {
    for (const InspectedTensor& tensor : found.tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }

  static void expect_sharded(const Inspection& found, const std::string& name, const std::string& rule,
                             const Shapes& shapes) {
    const InspectedTensor tensor = find(found, name);
    EXPECT_EQ(tensor.rule, rule) << name;
    EXPECT_EQ(tensor.rank_shapes, shapes) << name;
    EXPECT_EQ(tensor.dtype, io::Dtype::BF16) << name;
  }

  const TemporaryDirectory dir_;
};

TEST_F(Inspect, SplitProjections) {
  const Inspection found = inspect("llama", 2);
  const std::string layer = "model.layers.1.";
  expect_sharded(found, "model.embed_tokens.weight", "vocab, dim 0", {{9, 12}, {8, 12}});
  expect_sharded(found, layer + "self_attn.k_proj.weight", "kv_heads, dim 0",
                 {{8, 12}, {8, 12}});  // one replicated
  expect_sharded(found, layer + "self_attn.o_proj.weight", "heads, dim 1", {{12, 12}, {12, 12}});
  expect_sharded(found, layer + "self_attn.o_proj.bias", "whole on every rank", {{12}, {12}});
  expect_sharded(found, layer + "mlp.down_proj.weight", "ffn, dim 1", {{12, 51}, {12, 50}});
  EXPECT_EQ(find(found, "model.embed_tokens.weight").shape, (std::vector<int64_t>{17, 12}));
}

TEST_F(Inspect, FusedAndTransposedProjections) {
  const Inspection phi3 = inspect("phi3", 4);
  expect_sharded(phi3, "model.layers.0.self_attn.qkv_proj.weight", "heads | kv_heads | kv_heads, dim 0",
                 {{16, 12}, {16, 12}, {12, 12}, {12, 12}});  // 2 + 1 + 1 heads of 4, and 1 + 1 + 1
  const Inspection gpt2 = inspect("gpt2", 3);
  expect_sharded(gpt2, "transformer.h.0.attn.c_attn.weight", "heads | kv_heads | kv_heads, dim 1",
                 {{24, 24}, {24, 24}, {24, 24}});
  expect_sharded(gpt2, "transformer.h.0.mlp.c_proj.weight", "ffn, dim 0", {{34, 24}, {34, 24}, {33, 24}});
}

TEST_F(Inspect, CountsParametersAndBytes) {
  const Inspection found = inspect("phi3", 2);
  // Two tables; a layer's attention, MLP and two norms, with 6 + 2 x 3 heads; the last norm.
  const int64_t parameters = 2 * 17 * 12 + 2 * (12 * 4 * 12 + 24 * 12 + 3 * 101 * 12 + 24) + 12;
  EXPECT_EQ(found.parameters, parameters);
  EXPECT_EQ(found.bytes, 2 * parameters);
  // Replicated on both ranks: five norms, and KV head 1 of both layers.
  const int64_t replicated = 5 * 12 + 2 * (2 * 4 * 12);
  EXPECT_EQ(std::accumulate(found.rank_bytes.begin(), found.rank_bytes.end(), int64_t{0}),
            2 * (parameters + replicated));
}

TEST_F(Inspect, ReadsHeadersOnly) {
  const Inspection found = inspect("llama", 2);
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(dir_ / "step-1/model.safetensors"));
  EXPECT_EQ(found.bytes_read, file_bytes - found.bytes);
}

TEST_F(Inspect, WeightsOfAnotherModelAreRejected) {
  inspect("llama", 1);
  dir_.put("step-1/config.json", config::to_json(uneven_config(/*is_tied=*/false, "phi3")));
  EXPECT_PRED2(contains, error_text([&] { checkpoint::inspect(dir_ / "step-1", 1); }), "qkv_proj");
}

}  // namespace
}  // namespace shardwise::testing::inspect_test

// Attention of whole sequences on the device: fused where that is possible, else by products.
#include "shardwise/kernels/attention.h"

#include <gtest/gtest.h>

#include "shardwise/kernels/device.h"
#include "tests/device/device.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::device_test {
namespace {

using at::Tensor;
using kernels::AttentionOptions;
using kernels::Qkv;

struct AttentionCase {
  std::string name;
  std::vector<int64_t> kv_of_head;
  bool causal = true;
  std::optional<int64_t> window = {};
  int64_t queries = 9, keys = 9, head_dim = 8;
};

const std::vector<AttentionCase> kCases{
    {"OneHead", {0}},
    {"OwnKeys", {0, 1, 2}},
    {"Groups", {0, 0, 1, 1}},
    {"OneGroup", {0, 0, 0}},
    {"NotCausal", {0, 0, 1, 1}, false},
    {"Window", {0, 0, 1, 1}, true, 3},
    {"WindowOfTwo", {0, 1}, true, 2},
    {"LongWindow", {0, 1}, true, 100},
    {"Past", {0, 0, 1, 1}, true, {}, 3, 20},
    {"PastAndWindow", {0, 1}, true, 5, 3, 20},
    {"OneQuery", {0, 0, 1, 1}, true, {}, 1, 20},
    {"WideHeads", {0, 0, 1, 1}, true, {}, 9, 9, 256},
};

class FusedAttention : public ::testing::TestWithParam<std::tuple<AttentionCase, at::ScalarType>> {};

/// Of the strides that a q|k|v product has: v is a part of it.
Qkv heads_of(const AttentionCase& of, at::ScalarType dtype, at::Device device) {
  const auto heads = [&](int64_t count, int64_t positions, uint64_t seed) {
    return testing::random_tensor({positions, 2, count, of.head_dim}, seed, dtype)
        .to(device)
        .permute({1, 2, 0, 3});
  };
  const int64_t kv_heads = of.kv_of_head.back() + 1;
  return {heads(std::ssize(of.kv_of_head), of.queries, 1).contiguous(),
          heads(kv_heads, of.keys, 2).contiguous(), heads(kv_heads, of.keys, 3)};
}

std::vector<Tensor> results_of(const AttentionCase& of, at::ScalarType dtype, at::Device device) {
  const Qkv qkv = heads_of(of, dtype, device);
  const AttentionOptions options{.kv_of_head = of.kv_of_head, .causal = of.causal, .window = of.window};
  const auto forward = kernels::attention(qkv, options);
  std::vector<Tensor> results{forward.out, forward.lse};
  if (of.queries == of.keys) {
    const Tensor d_out = testing::random_tensor(forward.out.sizes().vec(), 4, dtype).to(device);
    const Qkv grads = kernels::attention_backward(d_out, qkv, forward, options);
    results.insert(results.end(), {grads.q, grads.k, grads.v});
  }
  for (Tensor& result : results) result = result.cpu();
  return results;
}

TEST_P(FusedAttention, GivesWhatTheCpuGives) {
  const at::Device device = testing::on_device().device();
  const auto& [of, dtype] = GetParam();
  const AttentionOptions options{.kv_of_head = of.kv_of_head, .causal = of.causal, .window = of.window};
  EXPECT_EQ(kernels::kernels_on(device).has_fused_attention(heads_of(of, dtype, device), options),
            dtype != at::kFloat);
  const std::vector<Tensor> expected = results_of(of, dtype, at::kCPU), got = results_of(of, dtype, device);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), expected[i].sizes());
    EXPECT_LT(testing::relative_error(got[i], expected[i]), dtype == at::kFloat ? 1e-5 : 1.0 / 128)
        << "result " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FusedAttention,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + c10::toString(std::get<1>(info.param));
                         });

// What FlashAttention has not: these are products.
TEST(FusedAttentionOnDevice, IsWithoutPaddingDropoutAndUnevenGroups) {
  const at::Device device = testing::on_device().device();
  const auto is_fused = [&](const AttentionCase& of, AttentionOptions options,
                            at::ScalarType dtype = at::kBFloat16) {
    options.kv_of_head = of.kv_of_head;
    return kernels::kernels_on(device).has_fused_attention(heads_of(of, dtype, device), options);
  };
  const AttentionCase even{"", {0, 0, 1, 1}};
  EXPECT_TRUE(is_fused(even, {}));
  EXPECT_TRUE(is_fused(even, {}, at::kHalf));
  EXPECT_FALSE(is_fused(even, {}, at::kFloat));
  EXPECT_FALSE(is_fused(even, {.valid = {{1, 9}, {0, 9}}}));
  EXPECT_FALSE(is_fused(even, {.dropout = {.p = 0.1, .all_heads = 4}}));
  EXPECT_FALSE(is_fused({"", {0, 1, 1, 1}}, {}));
  EXPECT_FALSE(is_fused({"", {0, 0, 1}}, {}));
  EXPECT_FALSE(is_fused({.name = "", .kv_of_head = {0}, .head_dim = 12}, {}));
  EXPECT_FALSE(is_fused({.name = "", .kv_of_head = {0}, .head_dim = 264}, {}));
}

TEST(FusedAttentionOnDevice, HasNoMatrixOfScores) {
  if (!testing::is_emulated()) GTEST_SKIP() << "the device's memory cannot be made small";
  const at::Device device = testing::on_device().device();
  const AttentionCase long_one{.name = "", .kv_of_head = {0}, .queries = 2048, .keys = 2048};
  testing::set_emulated_capacity(int64_t{4} << 20);  // scores would take 32 MB
  EXPECT_NO_THROW(results_of(long_one, at::kBFloat16, device));
  EXPECT_THROW(results_of(long_one, at::kFloat, device), c10::OutOfMemoryError);
  testing::set_emulated_capacity(int64_t{1} << 32);
}

}  // namespace
}  // namespace shardwise::device_test

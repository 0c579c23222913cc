// Attention to KV caches on the emulated device: what the CPU gives, over several tokens of several
// sequences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shardwise/infer/generate.h"
#include "shardwise/kernels/cached_attention.h"
#include "shardwise/kernels/product.h"
#include "tests/device/device.h"
#include "tests/support/error_text.h"
#include "tests/support/small_config.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::device_test {
namespace {

using at::Tensor;
using kernels::AttentionOptions;
using kernels::CachedHeads;
using kernels::StoredHeads;

constexpr int64_t kSequences = 3, kHeadDim = 16, kPast = 5;

struct Attention {
  std::string name;
  std::vector<int64_t> kv_of_head;
  std::optional<int64_t> window;
  bool is_int8;
};

/// Groups of one size, and those that a rank has whose shard begins and ends within one.
const std::vector<Attention> kAttentions{{"one query head for each key", {0, 1, 2}, {}, false},
                                         {"groups of two", {0, 0, 1, 1}, {}, false},
                                         {"a window", {0, 0, 1, 1}, 3, false},
                                         {"cut groups", {0, 1, 1, 1, 2, 2}, {}, false},
                                         {"int8", {0, 0, 0}, {}, true}};

StoredHeads empty_rows(int64_t heads, int64_t capacity, at::ScalarType dtype, bool is_int8,
                       at::Device device) {
  const auto options = at::TensorOptions(device);
  if (!is_int8) return {at::zeros({heads, capacity, kHeadDim}, options.dtype(dtype)), {}};
  return {at::zeros({heads, capacity, kHeadDim}, options.dtype(at::kChar)),
          at::zeros({heads, capacity}, options.dtype(at::kFloat))};
}

/// The outputs of two tokens after a prompt, and the caches afterwards, on the host.
std::vector<Tensor> attended(const Attention& attention, at::ScalarType dtype, at::Device device) {
  const auto heads = std::ssize(attention.kv_of_head), kv_heads = attention.kv_of_head.back() + 1;
  std::vector<CachedHeads> caches;
  for (int64_t i = 0; i < kSequences; ++i) {
    const int64_t capacity = 16 * (i + 1), past = kPast + i;
    caches.push_back({empty_rows(kv_heads, capacity, dtype, attention.is_int8, device),
                      empty_rows(kv_heads, capacity, dtype, attention.is_int8, device), past});
    for (const auto& [stored, seed] :
         {std::pair{&caches.back().keys, 20 + i}, {&caches.back().values, 30 + i}}) {
      const Tensor prompt =
          testing::random_tensor({kv_heads, past, kHeadDim}, static_cast<uint64_t>(seed), dtype);
      kernels::store_rows_(*stored, /*position=*/0, prompt.to(device));
    }
  }
  std::vector<Tensor> results;
  for (uint64_t token = 0; token < 2; ++token) {
    const auto random = [&](int64_t count, uint64_t seed) {
      return testing::random_tensor({kSequences, count, 1, kHeadDim}, 100 * token + seed, dtype).to(device);
    };
    const AttentionOptions options{.kv_of_head = attention.kv_of_head, .window = attention.window};
    results.push_back(kernels::cached_attention({random(heads, 1), random(kv_heads, 2), random(kv_heads, 3)},
                                                caches, options)
                          .cpu());
    for (CachedHeads& cache : caches) ++cache.length;
  }
  for (const CachedHeads& cache : caches) {
    for (const Tensor& tensor : {cache.keys.rows, cache.values.rows, cache.keys.scales, cache.values.scales})
      if (tensor.defined()) results.push_back(tensor.cpu());
  }
  return results;
}

class CachedAttentionOnDevice : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(CachedAttentionOnDevice, GivesWhatTheCpuGives) {
  const at::Device device = testing::on_device().device();
  const double tolerance = GetParam() == at::kFloat ? 1e-5 : 1e-2;
  for (const Attention& attention : kAttentions) {
    SCOPED_TRACE(attention.name);
    const std::vector<Tensor> expected = attended(attention, GetParam(), at::kCPU),
                              actual = attended(attention, GetParam(), device);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      if (i < 2) {
        EXPECT_LE(testing::relative_error(actual[i], expected[i]), tolerance) << "token " << i;
      } else {
        EXPECT_TRUE(actual[i].equal(expected[i])) << "cache " << i - 2;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CachedAttentionOnDevice, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// A row with NaN or Inf reads as NaN.
TEST(StoredRowsOnDevice, AreRoundedToInt8AsOnTheCpu) {
  const at::Device device = testing::on_device().device();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Tensor rows = testing::random_tensor({2, 6, kHeadDim}, 1, dtype);
    rows[0][1].zero_();
    rows[0][2][3] = NAN;
    rows[1][4][0] = -INFINITY;
    const auto stored = [&](at::Device on) {
      const StoredHeads heads = empty_rows(2, 16, dtype, /*is_int8=*/true, on);
      kernels::store_rows_(heads, /*position=*/3, rows.to(on));
      return std::vector<Tensor>{heads.rows.cpu(), heads.scales.cpu(),
                                 kernels::stored_rows(heads, 9, dtype).cpu()};
    };
    const std::vector<Tensor> expected = stored(at::kCPU), actual = stored(device);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(actual[i].allclose(expected[i], /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true)) << i;
  }
}

TEST(CachedAttentionRefusals, NameTheValueAndTheRule) {
  const at::Device device = testing::on_device().device();
  const auto error_of = [&](const std::vector<int64_t>& kv_of_head, int64_t d, int64_t offset) {
    const int64_t kv_heads = kv_of_head.back() + 1;
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const Tensor storage = at::zeros({2 * kv_heads * 4 * d + 4}, options);
    const auto rows = [&](int64_t begin) {
      return storage.narrow(0, begin, kv_heads * 4 * d).view({kv_heads, 4, d});
    };
    const auto heads = [&](int64_t count) { return at::zeros({1, count, 1, d}, options); };
    const CachedHeads cache{{rows(offset), {}}, {rows(kv_heads * 4 * d), {}}, 1};
    return test::error_text<c10::ValueError>([&] {
      kernels::cached_attention({heads(std::ssize(kv_of_head)), heads(kv_heads), heads(kv_heads)}, {cache},
                                {.kv_of_head = kv_of_head});
    });
  };
  EXPECT_EQ(error_of({0, 0, 0, 1, 2, 2}, 8, 0),
            "cached_attention: a GPU's query heads must share KV heads in groups of one size; got [0, 0, 0, "
            "1, 2, 2]");
  EXPECT_EQ(error_of({0}, 520, 0), "cached_attention: a GPU's head_dim must be at most 512; got 520");
  EXPECT_EQ(
      error_of({0}, 8, 1).find("cached_attention: a GPU's caches must begin at a multiple of 16 bytes; got "),
      0);
}

/// What the device did: waits of the host, kernels, and replays of graphs.
struct TokenWork {
  int64_t reads = testing::emulated_reads(), launches = testing::emulated_launches(),
          replays = testing::emulated_replays();
  TokenWork operator-(const TokenWork& other) const {
    return {reads - other.reads, launches - other.launches, replays - other.replays};
  }
  bool operator==(const TokenWork&) const = default;
};
std::ostream& operator<<(std::ostream& out, const TokenWork& done) {
  return out << done.reads << " reads, " << done.launches << " launches, " << done.replays << " replays";
}

/// Returns what was done for one token after the first ones.
TokenWork done_for_a_token(const config::Config& config, at::ScalarType dtype) {
  model::DecoderWeights weights(config, testing::on_device(), dtype, model::WeightUse::inference);
  weights.initialize_(/*seed=*/1);
  const auto done_for = [&](int64_t tokens) {
    const TokenWork before;
    infer::generate(weights, {{{3, 5, 2}, tokens}}, /*end_ids=*/{}, {});
    return TokenWork() - before;
  };
  const TokenWork few = done_for(6);
  return done_for(7) - few;
}

// The kernels are those of docs/gpu-kernels.md: 10 for each of two layers and 4 for the rest, of which all
// but the candidates are in one graph.
TEST(TokenOnDevice, WaitsOnceAndLaunchesWhatIsDocumented) {
  config::Config llama = testing::small_config();
  llama.head_dim = 8;
  config::Config qwen3 = llama;
  qwen3.model_type = "qwen3";
  qwen3.qk_norm = true;
  config::Config int8 = llama;
  int8.quantization = {.bits = 8, .lm_head = true, .int8_head = true};
  const TokenWork expected{1, 2 * 10 + 4, 1};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(done_for_a_token(llama, dtype), expected);
    EXPECT_EQ(done_for_a_token(qwen3, dtype), expected);
    EXPECT_EQ(done_for_a_token(int8, dtype), expected);
  }
}

// Products of a few rows by the kernel, of more rows by ATen; a row alone has the bits that it has among
// others.
TEST(ProductOnDevice, OfAFewRowsHasTheBitsOfEach) {
  const at::Device device = testing::on_device().device();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t m : {1, 2, 7, 8, 9}) {
      const Tensor x = testing::random_tensor({m, 40}, 1, dtype),
                   w = testing::random_tensor({24, 40}, 2, dtype);
      const auto product = [&](const Tensor& rows) {
        Tensor y = at::empty({rows.size(0), 24}, x.options().device(device));
        kernels::product_out(y, rows.to(device), w.to(device).t());
        return y.cpu();
      };
      const Tensor y = product(x);
      const Tensor expected = x.to(at::kDouble).matmul(w.to(at::kDouble).t());
      EXPECT_LE(testing::relative_error(y, expected), dtype == at::kFloat ? 1e-6 : 1e-2);
      if (m > 8) continue;
      for (int64_t row = 0; row < m; ++row)
        EXPECT_TRUE(product(x.narrow(0, row, 1)).equal(y.narrow(0, row, 1))) << m << ", " << row;
    }
  }
}

}  // namespace
}  // namespace shardwise::device_test

#include "shardwise/bench/operation_rates.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <memory>

#include "shardwise/bench/kernel_cases.h"
#include "shardwise/kernels/adamw.h"
#include "shardwise/kernels/attention.h"
#include "shardwise/kernels/cached_attention.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/square_sum.h"

namespace shardwise::bench {
namespace {

using at::Tensor;
using Makers = std::vector<std::function<SizedCalls()>>;

/// Rows, output and input features of a linear layer: from 2 MFLOP to 34 GFLOP in one product.
struct ProductSize {
  int64_t rows, outputs, inputs;
};
constexpr ProductSize kProducts[] = {{64, 128, 128},    {128, 256, 256},    {256, 512, 512},
                                     {256, 2048, 1024}, {1024, 2048, 2048}, {2048, 4096, 2048}};

/// Tokens of a sequence, and how many sequences.
struct AttentionSize {
  int64_t tokens, sequences;
};
constexpr AttentionSize kAttentions[] = {{64, 1}, {256, 1}, {512, 2}, {1024, 2}, {4096, 1}};
constexpr int64_t kAttentionHeads = 8, kHeadFeatures = 64;

/// Cached tokens of a text, and how many texts.
constexpr AttentionSize kCaches[] = {{64, 1}, {256, 1}, {1024, 1}, {512, 4}, {1024, 8}, {4096, 8}};
constexpr int64_t kCachedHeads = 2;

/// Tokens and features of the elementwise kernels: from caches to memory.
struct TensorSize {
  int64_t rows, width;
};
constexpr TensorSize kTensors[] = {{1, 256},     {8, 512},     {64, 256},   {256, 512},
                                   {1024, 1024}, {2048, 2048}, {4096, 4096}};
constexpr int64_t kUpdated = 1 << 22;  // parameters

constexpr const char* kBlockKernels[] = {"rms_norm", "swiglu", "rotary"};

std::string text_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : "bf16";
}

SizedCalls products_of(const ProductSize& size, at::ScalarType dtype) {
  const auto& [rows, outputs, inputs] = size;
  const Tensor x = random_tensor({rows, inputs}, dtype), dy = random_tensor({rows, outputs}, dtype),
               w = random_tensor({outputs, inputs}, dtype);
  Tensor y = at::empty_like(dy), dx = at::empty_like(x), dw = at::zeros({outputs, inputs});
  const double flop = 2.0 * static_cast<double>(rows * outputs * inputs);
  return {fmt::format("{} products of {} x {} x {}", text_of(dtype), rows, outputs, inputs),
          {[=]() mutable { kernels::product_out(y, x, w.t()); },
           [=]() mutable { kernels::product_out(dx, dy, w); },
           [=]() mutable { kernels::add_weight_grad_(dw, dy, x); }},
          {flop, flop, flop}};
}

SizedCalls attention_of(const AttentionSize& size, at::ScalarType dtype) {
  const auto& [s, b] = size;
  const auto heads = [&](uint64_t seed) {
    return random_tensor({b, kAttentionHeads, s, kHeadFeatures}, dtype, seed);
  };
  const kernels::Qkv qkv{heads(1), heads(2), heads(3)};
  kernels::AttentionOptions options;
  for (int64_t head = 0; head < kAttentionHeads; ++head) options.kv_of_head.push_back(head);
  const kernels::AttentionResult result = kernels::attention(qkv, options);
  const Tensor d_out = random_tensor(result.out.sizes().vec(), dtype, /*seed=*/4);
  // Half of the keys are visible, and forward has two products, backward four beside the scores.
  const double product = static_cast<double>(b * kAttentionHeads * kHeadFeatures * s * s);
  return {fmt::format("{} attention of {} x {} tokens", text_of(dtype), b, s),
          {[=] { kernels::attention(qkv, options); },
           [=] { kernels::attention_backward(d_out, qkv, result, options); }},
          {2 * product, 4 * product}};
}

using Caches = std::vector<kernels::CachedHeads>;

Caches copy_of(const Caches& caches) {
  Caches copy = caches;
  for (kernels::CachedHeads& one : copy) {
    one.keys.rows = one.keys.rows.clone();
    one.values.rows = one.values.rows.clone();
  }
  return copy;
}

/// The token is stored in the cache's last place at each call.
SizedCalls cached_attention_of(const AttentionSize& size, int64_t queries, int64_t bytes_in_turn) {
  const auto& [length, texts] = size;
  const auto heads = [&, texts = texts](int64_t count, uint64_t seed) {
    return random_tensor({texts, count, 1, kHeadFeatures}, at::kBFloat16, seed);
  };
  const auto cache = [&, length = length](uint64_t seed) {
    return kernels::StoredHeads{random_tensor({kCachedHeads, length, kHeadFeatures}, at::kBFloat16, seed),
                                {}};
  };
  const kernels::Qkv qkv{heads(queries * kCachedHeads, 1), heads(kCachedHeads, 2), heads(kCachedHeads, 3)};
  Caches caches;
  for (int64_t text = 0; text < texts; ++text)
    caches.push_back(
        {cache(4 + 2 * static_cast<uint64_t>(text)), cache(5 + 2 * static_cast<uint64_t>(text)), length - 1});
  kernels::AttentionOptions options;
  for (int64_t head = 0; head < queries * kCachedHeads; ++head) options.kv_of_head.push_back(head / queries);
  const int64_t elements = 2 * texts * length * kCachedHeads * kHeadFeatures,
                bytes = elements * int64_t{sizeof(at::BFloat16)};
  std::vector<Caches> in_turn = {caches};
  while (std::ssize(in_turn) * bytes < bytes_in_turn) in_turn.push_back(copy_of(caches));
  return {fmt::format("attention of {} heads to {} x {} cached tokens, {}", queries * kCachedHeads, texts,
                      length, std::ssize(in_turn) == 1 ? "from a cache" : "from memory"),
          {[=, next = size_t{0}]() mutable {
            kernels::cached_attention(qkv, in_turn[next++ % in_turn.size()], options);
          }},
          {static_cast<double>(elements)}};
}

/// All kernels as one call, each of whose operations moves the mean number of bytes.
SizedCalls elementwise_of(const TensorSize& size, at::ScalarType dtype) {
  SizedCalls sized{fmt::format("{} kernels of {} x {}", text_of(dtype), size.rows, size.width), {}, {}};
  for (const char* family : kBlockKernels) {
    for (const KernelCase& one : kernel_cases(family, size.rows, size.width, dtype)) {
      sized.calls.push_back([call = one.ours] { call(); });
      sized.work.push_back(static_cast<double>(one.bytes));
    }
  }
  return sized;
}

/// Calls make(size, dtype) later, so that one size's tensors are freed before the next one's exist.
template <class Sizes, class Make>
Makers makers(const Sizes& sizes, at::ScalarType dtype, const Make& make) {
  Makers list;
  for (const auto& size : sizes) list.push_back([=] { return make(size, dtype); });
  return list;
}

}  // namespace

Makers product_calls(at::ScalarType dtype) {
  return makers(kProducts, dtype, products_of);
}

Makers attention_calls(at::ScalarType dtype) {
  return makers(kAttentions, dtype, attention_of);
}

Makers cached_attention_calls(int64_t queries, int64_t bytes_in_turn) {
  Makers list;
  for (const AttentionSize& size : kCaches)
    list.push_back([=] { return cached_attention_of(size, queries, bytes_in_turn); });
  return list;
}

Makers elementwise_calls(at::ScalarType dtype) {
  return makers(kTensors, dtype, elementwise_of);
}

SizedCalls update_calls() {
  const auto zeros = [] { return at::zeros({kUpdated}); };
  const kernels::AdamWTensors tensors{zeros(), zeros(), zeros(), zeros(), /*rounded=*/{}};
  const kernels::AdamWStep step{.number = 1,
                                .learning_rate = 1e-4,
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .eps = 1e-8,
                                .weight_decay = 0,
                                .gradient_scale = 1,
                                .zeroes_gradient = true};
  constexpr double kBytes = 4.0 * kUpdated;  // of a tensor
  return {"the optimizer",
          {[=] { kernels::square_sum(tensors.gradient); }, [=] { kernels::adamw_(tensors, step); }},
          {kBytes, 8 * kBytes}};
}

}  // namespace shardwise::bench

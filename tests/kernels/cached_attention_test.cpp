// Decoding of several sequences in one call: the bits of one call per sequence, and appended caches.
#include "shardwise/kernels/cached_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/error_text.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::kernels::cached_attention_test {
namespace {

using at::Tensor;
using testing::random_tensor;
using testing::same_bits;

constexpr int64_t kKvHeads = 3, kCapacity = 90;
// The sequences' tokens before the new one.
const std::vector<int64_t> kLengths{0, 5, 64, 89};

AttentionOptions options() {
  return {.kv_of_head = {0, 0, 0, 0, 0, 1, 2, 2}};  // a group that is larger than one pass of the loops
}

struct Sequences {
  Qkv heads;
  std::vector<CachedHeads> caches;
  Sequences(int64_t d, at::ScalarType dtype) {
    const auto n = std::ssize(kLengths);
    heads = {random_tensor({n, 8, 1, d}, 1, dtype), random_tensor({n, kKvHeads, 1, d}, 2, dtype),
             random_tensor({n, kKvHeads, 1, d}, 3, dtype)};
    for (const int64_t length : kLengths)
      caches.push_back({random_tensor({kKvHeads, kCapacity, d}, 4, dtype),
                        random_tensor({kKvHeads, kCapacity, d}, 5, dtype), length});
  }
};

/// Returns the result of attention over the keys before the new one and the new one.
Tensor one_by_one(const Sequences& of, int64_t i, const AttentionOptions& options) {
  const CachedHeads& cache = of.caches[size_t(i)];
  const auto with_new = [&](const Tensor& cached, const Tensor& added) {
    return at::cat({cached.narrow(1, 0, cache.length), added[i]}, 1).unsqueeze(0);
  };
  return attention({of.heads.q.narrow(0, i, 1), with_new(cache.keys, of.heads.k),
                    with_new(cache.values, of.heads.v)},
                   options)
      .out;
}

TEST(CachedAttention, IsThatOfEachSequence) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t d : {4, 20, 64, 72, 128}) {
      for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
        const Sequences of(d, dtype);
        AttentionOptions how = options();
        how.window = window;
        std::vector<Tensor> expected;
        for (int64_t i = 0; i < std::ssize(kLengths); ++i) expected.push_back(one_by_one(of, i, how));
        const Tensor out = cached_attention(of.heads, of.caches, how);
        for (int64_t i = 0; i < std::ssize(kLengths); ++i) {
          // A sequence's first token is attended to by the loops of many queries.
          const double error = testing::relative_error(out[i], expected[size_t(i)][0]);
          EXPECT_LE(error, kLengths[size_t(i)] > 0 ? 0 : 1e-2) << dtype << ", d " << d << ", sequence " << i;
        }
      }
    }
  }
}

TEST(CachedAttention, AppendsKeysAndValues) {
  Sequences of(20, at::kBFloat16);
  const Tensor before = of.caches[1].keys.clone();
  // As split_norm_rotary returns them.
  of.heads.v = at::cat({of.heads.v, of.heads.v}, 1).narrow(1, 0, kKvHeads);
  cached_attention(of.heads, of.caches, options());
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const auto sequence = static_cast<int64_t>(i);
    EXPECT_TRUE(same_bits(of.caches[i].keys.narrow(1, kLengths[i], 1).contiguous(), of.heads.k[sequence]));
    EXPECT_TRUE(same_bits(of.caches[i].values.narrow(1, kLengths[i], 1).contiguous(),
                          of.heads.v[sequence].contiguous()));
  }
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5}, {6, kCapacity - 6}})
    EXPECT_TRUE(same_bits(of.caches[1].keys.narrow(1, begin, count).contiguous(),
                          before.narrow(1, begin, count).contiguous()));
}

TEST(CachedAttention, ValidationErrors) {
  const auto error_of = [](auto change, AttentionOptions how = options()) {
    Sequences of(8, at::kFloat);
    change(of);
    return test::error_text([&] { cached_attention(of.heads, of.caches, how); });
  };
  const auto nothing = [](Sequences&) {};
  using test::contains;
  EXPECT_PRED2(contains, error_of([](Sequences& of) { of.caches[0].length = kCapacity; }),
               "a cache must have room for a token after its 90; got a capacity of 90");
  EXPECT_PRED2(contains, error_of([](Sequences& of) { of.caches.pop_back(); }),
               "must get one token for each of 3 caches");
  EXPECT_PRED2(contains, error_of([](Sequences& of) { of.heads.q = of.heads.q[0]; }),
               "must be [b, heads, s, d]");
  AttentionOptions how = options();
  how.kv_of_head.back() = 3;
  EXPECT_PRED2(contains, error_of(nothing, how), "kv_of_head must list one of 3 KV heads");
  how = options();
  how.dropout.p = 0.5;
  EXPECT_PRED2(contains, error_of(nothing, how), "must have neither padding nor dropout");
}

}  // namespace
}  // namespace shardwise::kernels::cached_attention_test

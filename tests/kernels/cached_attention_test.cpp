// Decoding of several sequences in one call: the bits of one call per sequence, and appended caches.
#include "shardwise/kernels/cached_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mv.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/support.h"
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
      caches.push_back({{random_tensor({kKvHeads, kCapacity, d}, 4, dtype), {}},
                        {random_tensor({kKvHeads, kCapacity, d}, 5, dtype), {}},
                        length});
  }
};

/// Returns the result of attention over the keys before the new one and the new one.
Tensor one_by_one(const Sequences& of, int64_t i, const AttentionOptions& options) {
  const CachedHeads& cache = of.caches[size_t(i)];
  const auto with_new = [&](const Tensor& cached, const Tensor& added) {
    return at::cat({cached.narrow(1, 0, cache.length), added[i]}, 1).unsqueeze(0);
  };
  return attention({of.heads.q.narrow(0, i, 1), with_new(cache.keys.rows, of.heads.k),
                    with_new(cache.values.rows, of.heads.v)},
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
  const Tensor before = of.caches[1].keys.rows.clone();
  // As split_norm_rotary returns them.
  of.heads.v = at::cat({of.heads.v, of.heads.v}, 1).narrow(1, 0, kKvHeads);
  cached_attention(of.heads, of.caches, options());
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const auto sequence = static_cast<int64_t>(i);
    EXPECT_TRUE(
        same_bits(of.caches[i].keys.rows.narrow(1, kLengths[i], 1).contiguous(), of.heads.k[sequence]));
    EXPECT_TRUE(same_bits(of.caches[i].values.rows.narrow(1, kLengths[i], 1).contiguous(),
                          of.heads.v[sequence].contiguous()));
  }
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5}, {6, kCapacity - 6}})
    EXPECT_TRUE(same_bits(of.caches[1].keys.rows.narrow(1, begin, count).contiguous(),
                          before.narrow(1, begin, count).contiguous()));
}

/// Returns the attention of one query [a, d] by its formula, in fp64, over the first `count` cached tokens.
Tensor reference(const Tensor& q, const CachedHeads& cache, int64_t count, const AttentionOptions& options) {
  const int64_t first = options.window ? std::max<int64_t>(0, count - *options.window) : 0;
  const auto attended = [&](const StoredHeads& stored) {
    return stored_rows(stored, count, stored.is_quantized() ? at::kDouble : q.scalar_type())
        .to(at::kDouble)
        .narrow(1, first, count - first);
  };
  const Tensor keys = attended(cache.keys), values = attended(cache.values);
  std::vector<Tensor> heads;
  for (int64_t head = 0; head < q.size(0); ++head) {
    const int64_t kv = options.kv_of_head[size_t(head)];
    const Tensor scores = at::mv(keys[kv], q[head].to(at::kDouble)) / std::sqrt(double(q.size(1)));
    heads.push_back(at::mv(values[kv].t(), scores.softmax(0)));
  }
  return at::cat(heads);
}

/// A cache of `length` random tokens with room for another, in `stored` as its dtype.
CachedHeads random_cache(int64_t length, int64_t d, at::ScalarType dtype, at::ScalarType stored) {
  const auto filled = [&](uint64_t seed) {
    StoredHeads heads{at::empty({kKvHeads, length + 1, d}, stored), {}};
    if (stored == at::kChar) heads.scales = at::empty({kKvHeads, length + 1}, at::kFloat);
    store_rows_(heads, 0, NewRows::of(random_tensor({kKvHeads, length, d}, seed, dtype)));
    return heads;
  };
  return {filled(4), filled(5), length};
}

double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 1e-3 : 5e-3;
}

// Keys are attended to in blocks of 1024; bits do not depend on the threads that share the blocks.
TEST(CachedAttention, MatchesFp64ReferenceBeyondABlockOfKeys) {
  const std::vector<int64_t> lengths{0, 1022, 1023, 1024, 2047, 2600};
  const auto n = std::ssize(lengths);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool is_int8 : {false, true}) {
      for (const int64_t d : {20, 64}) {
        for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(1500)}) {
          AttentionOptions how = options();
          how.window = window;
          const Qkv heads = {random_tensor({n, 8, 1, d}, 1, dtype),
                             random_tensor({n, kKvHeads, 1, d}, 2, dtype),
                             random_tensor({n, kKvHeads, 1, d}, 3, dtype)};
          std::vector<CachedHeads> caches;
          for (const int64_t length : lengths)
            caches.push_back(random_cache(length, d, dtype, is_int8 ? at::kChar : dtype));
          const auto on_threads = [&](int threads) {
            const Threads some(threads);
            return cached_attention(heads, caches, how);
          };
          const Tensor out = on_threads(1);
          EXPECT_TRUE(same_bits(out, on_threads(2)));
          for (int64_t i = 0; i < n; ++i) {
            const Tensor expected =
                reference(heads.q[i].squeeze(1), caches[size_t(i)], lengths[size_t(i)] + 1, how);
            EXPECT_LE(testing::relative_error(out[i][0], expected), tolerance_of(dtype))
                << dtype << (is_int8 ? ", int8" : "") << ", d " << d << ", sequence " << i;
          }
        }
      }
    }
  }
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
  const Tensor few_scales = at::empty({kKvHeads, 5}, at::kFloat);
  EXPECT_PRED2(contains, error_of([&](Sequences& of) { of.caches[0].keys.scales = few_scales; }),
               "keys must be of dtype Char; got Float");
  const auto with_int8_keys = [&](Sequences& of) {
    of.caches[0].keys = {of.caches[0].keys.rows.to(at::kChar), few_scales};
  };
  EXPECT_PRED2(contains, error_of(with_int8_keys), "scales must be of shape [3, 90]; got [3, 5]");
  AttentionOptions how = options();
  how.kv_of_head.back() = 3;
  EXPECT_PRED2(contains, error_of(nothing, how), "kv_of_head must list one of 3 KV heads");
  how = options();
  how.dropout.p = 0.5;
  EXPECT_PRED2(contains, error_of(nothing, how), "must have neither padding nor dropout");
}

}  // namespace
}  // namespace shardwise::kernels::cached_attention_test

// Decode attention's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/cached_attention_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/emulator/kernels/cached_attention_call.h"
#include "tests/emulator/kernels/orders.h"

namespace shardwise::kernels::cuda::cached_attention_test {
namespace {

template <class T, class S = T>
void check(const Shape& s, const std::vector<int64_t>& lengths) {
  std::vector<Token> tokens;
  for (const int64_t length : lengths) tokens.push_back({static_cast<unsigned>(7 + tokens.size()), length});
  const Call<T, S> call(s, tokens);
  call.run();
  check_result(call);
}

struct Case {
  Shape shape;
  std::vector<int64_t> lengths;
};

/// Groups that are cut at both ends, in two passes, with a window; heads of packs and of single elements.
std::vector<Case> few_cases() {
  return {{{64, 5, 2, 3, 1}, {0, 16}}, {{7, 2, 1, 2, 0, 3}, {5}}, {{16, 9, 1, 9, 0, 16, 12}, {33}}};
}

/// Heads of each number of lanes; groups of all tiles, in one pass or two; lengths around the ends of splits,
/// and splits of several iterations.
std::vector<Case> cases() {
  if (is_sanitized()) return few_cases();
  return {{{1, 2, 2, 1}, {0, 15, 16, 33}},
          {{7, 3, 1, 3}, {1, 16}},
          {{8, 2, 1, 2, 0, 1024}, {600}},
          {{8, 2, 2, 1, 0, 2048}, {1100}},
          {{20, 8, 2, 4}, {0, 14, 17}},
          {{64, 4, 4, 1}, {0, 15, 16, 47}},
          {{64, 7, 2, 4, 1}, {0, 15, 16, 47}},
          {{64, 4, 1, 4, 0, 128}, {127, 128, 200}},
          {{64, 4, 2, 2, 0, 16, 20}, {3, 19, 20, 30, 47, 48}},
          {{80, 5, 1, 5, 0, 16, 1}, {0, 16, 40}},
          {{80, 8, 2, 5, 1, 40}, {63, 100}},
          {{128, 8, 1, 8, 0, 64, 65}, {63, 64, 150}},
          {{128, 12, 1, 12, 0, 48}, {60}},
          {{256, 2, 1, 2, 0, 24}, {50}},
          {{264, 2, 1, 2, 0, 24}, {30}},
          {{512, 1, 1, 1, 0, 9}, {17}}};
}

TEST(CudaCachedAttention, MatchesFp64) {
  for (const auto& [shape, lengths] : cases()) {
    check<float>(shape, lengths);
    check<__nv_bfloat16>(shape, lengths);
    check<__half>(shape, lengths);
  }
}

TEST(CudaCachedAttention, Int8CachesMatchFp64) {
  for (const auto& [shape, lengths] : cases()) {
    check<__nv_bfloat16, int8_t>(shape, lengths);
    if (shape.d > 64) continue;
    check<__half, int8_t>(shape, lengths);
    check<float, int8_t>(shape, lengths);
  }
}

TEST(CudaCachedAttention, MatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const auto& [shape, lengths] : few_cases()) {
      check<float>(shape, lengths);
      check<__nv_bfloat16>(shape, lengths);
      check<__half, int8_t>(shape, lengths);
    }
  });
}

/// Heads of whole packs whose queries, keys and values are not aligned to 16 bytes.
TEST(CudaCachedAttention, UnalignedTokensHaveTheSameMeaning) {
  const Shape shape{.d = 64, .heads = 4, .kv_heads = 2, .group = 2, .shift = 1};
  check<float>(shape, {0, 20});
  check<__nv_bfloat16>(shape, {0, 20});
  check<__half, int8_t>(shape, {0, 20});
}

TEST(CudaCachedAttention, ScoresFarApartDoNotOverflow) {
  Shape shape{.d = 64, .heads = 4, .kv_heads = 1, .group = 4, .rows = 24};
  for (const float factor : {1e-30f, 100.0f, 1e4f}) {
    shape.factor = factor;
    check<float>(shape, {0, 70});
    check<__nv_bfloat16>(shape, {0, 70});
  }
}

/// A token's bits: alone, with other splits' count and capacity, and in each order of threads and blocks.
template <class T, class S>
void check_bits(const Shape& s) {
  const std::vector<Token> tokens = is_sanitized() ? std::vector<Token>{{1, 20}, {2, 3}}
                                                   : std::vector<Token>{{1, 40}, {2, 3}, {3, 16}, {4, 31}};
  std::vector<std::vector<T>> expected;
  for (const Token& token : tokens) {
    const Call<T, S> alone(s, {token});
    alone.run();
    expected.push_back(alone.result(0));
  }
  in_every_order([&] {
    const Call<T, S> call(s, tokens, /*spare=*/9, /*count=*/7);
    call.run();
    for (size_t i = 0; i < tokens.size(); ++i)
      EXPECT_EQ(std::memcmp(call.result(i).data(), expected[i].data(), expected[i].size() * sizeof(T)), 0)
          << text(s, tokens[i]);
  });
}

TEST(CudaCachedAttention, BitsOfATokenAreItsOwn) {
  check_bits<float, float>({20, 4, 2, 2, 0, 12});
  check_bits<__nv_bfloat16, __nv_bfloat16>({64, 4, 2, 2, 0, 12, 18});
  check_bits<__half, int8_t>({32, 4, 2, 2});
}

/// Tokens of one sequence in one call have the bits of one call after the other.
TEST(CudaCachedAttention, TokensOfOneSequenceAttendToThoseBefore) {
  constexpr size_t kTokens = 3;
  const Shape s{.d = 64, .heads = 4, .kv_heads = 2, .group = 2};
  const std::vector<Token> tokens{{1, 15}, {2, 16}, {3, 17}};
  const auto in_memory_of_first = [](const Call<float, float>& call) {
    for (size_t i = 1; i < kTokens; ++i) {
      const int64_t length = call.sequences->data()[i].length;
      call.sequences->data()[i] = call.sequences->data()[0];
      call.sequences->data()[i].length = length;
    }
  };
  Call<float, float> together(s, tokens, /*spare=*/4), apart(s, tokens, /*spare=*/4);
  in_memory_of_first(together);
  in_memory_of_first(apart);
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < kTokens; ++i) {  // call i has the tokens up to i, of which the last is new
    std::vector<Token> known(tokens.begin(), tokens.begin() + i + 1);
    apart.tokens = known;
    apart.run();
    expected.push_back(apart.result(i));
  }
  in_every_order([&] {
    together.run();
    for (size_t i = 0; i < kTokens; ++i) EXPECT_EQ(together.result(i), expected[i]) << i;
  });
}

/// The same launch reads what is in the array of sequences when it runs: a captured graph may be replayed.
TEST(CudaCachedAttention, ALaunchReadsTheSequencesOfItsTime) {
  const Shape s{.d = 64, .heads = 2, .kv_heads = 1, .group = 2};
  const Call<float, float> first(s, {{1, 30}}, /*spare=*/1, /*count=*/3), other(s, {{2, 17}});
  first.run();
  *first.sequences->data() = *other.sequences->data();
  std::memcpy(first.qkv.data(), other.qkv.data(), s.features() * sizeof(float));
  first.run();
  other.run();
  EXPECT_EQ(first.result(0), other.result(0));
}

/// Returns the result of 40 keys in which `change` has changed the first sequence's memory.
template <class Change>
std::vector<float> with(const Change& change) {
  const Shape s{.d = 8, .heads = 2, .kv_heads = 2, .group = 1};
  const Call<float, float> call(s, {{1, 39}});
  change(call.keys[0]->rows.data(), call.values[0]->rows.data(), call.keys[0]->capacity * s.d);
  call.run();
  return call.result(0);
}

TEST(CudaCachedAttention, NaNsReachTheHeadsThatAttendToThem) {
  const float nan = std::nanf("");
  const auto of_key = with([&](float* keys, float*, int64_t) { keys[20 * 8 + 3] = nan; });
  const auto of_value = with([&](float*, float* values, int64_t head) { values[head + 39 * 8 - 8] = nan; });
  const auto of_all_keys = with([&](float* keys, float*, int64_t) { std::fill(keys, keys + 16 * 8, nan); });
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(std::isnan(of_key[i]), i < 8) << i;
    EXPECT_EQ(std::isnan(of_all_keys[i]), i < 8) << i;
    EXPECT_EQ(std::isnan(of_value[i]), i == 8) << i;
  }
}

TEST(CudaCachedAttention, AnInfiniteScoreHidesNoOther) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto out = with([&](float* keys, float*, int64_t) {
    std::fill(keys, keys + 16 * 8, 0.0f);  // scores of zero, then one that is ±∞
    keys[20 * 8] = infinity;
  });
  const auto excluded = with([&](float* keys, float* values, int64_t) {
    std::fill(keys, keys + 16 * 8, 0.0f);
    keys[20 * 8] = infinity;
    values[20 * 8] = 100;
  });
  // +∞ is NaN, as in the definition; −∞ has no weight.
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(out[i]) || out[i] == excluded[i]) << i;
}

TEST(CudaCachedAttention, NoTokensAndNoHeadsLaunchNothing) {
  const int64_t before = emulator::launches();
  Call<float, float>({64, 2, 1, 2}, {}).run();
  EXPECT_EQ(emulator::launches(), before);
}

/// Every window of every sequence is in the splits, and no fewer would do.
TEST(CudaKeySplits, HoldEverySequence) {
  for (const int64_t most : {1, 2, 127, 128, 129, 1000, 16384, 16385, 131072, 131073, 1000000}) {
    for (const int64_t window : {0, 1, 2, 127, 128, 129, 130, 1024, 4096, 2000000}) {
      const auto [rows, count] = key_splits(most, window);
      const auto splits_of = [&, rows = rows](int64_t end) {
        const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, end - window);
        return (end - 1) / rows - begin / rows + 1;
      };
      int64_t needed = 0;
      for (int64_t end = std::max<int64_t>(1, most - 3 * rows); end <= most; ++end)
        needed = std::max(needed, splits_of(end));
      EXPECT_EQ(count, needed) << most << " " << window;
      EXPECT_LE(count, 128);
      EXPECT_EQ(rows, key_splits(most, 0).rows);
      EXPECT_GE(rows, 128);
    }
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::cached_attention_test

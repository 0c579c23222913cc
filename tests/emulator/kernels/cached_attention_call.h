// A call of decode attention's CUDA kernels with its memory, and its results in fp64.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/kernels/cached_attention_cuda.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::cached_attention_test {

/// What the tokens of a call share.
struct Shape {
  int d, heads, kv_heads, group;
  int first = 0;
  int64_t rows = 16;  // of a split
  int64_t window = 0;
  int shift = 0;     // elements by which q, k and v are not aligned
  float factor = 1;  // of q

  int features() const { return (heads + 2 * kv_heads) * d; }
  int64_t begin(int64_t length) const { return window == 0 ? 0 : std::max<int64_t>(0, length + 1 - window); }
};

/// A new token, by which its sequence's cache is filled, too.
struct Token {
  unsigned seed;
  int64_t length;  // of the cache, before it
};

inline std::string text(const Shape& s, const Token& token) {
  return "d " + std::to_string(s.d) + " heads " + std::to_string(s.heads) + " of " +
         std::to_string(s.kv_heads) + " rows " + std::to_string(s.rows) + " window " +
         std::to_string(s.window) + " length " + std::to_string(token.length);
}

/// Keys or values of a sequence, in which only rows that are attended to are numbers.
template <class S>
struct Rows {
  static constexpr bool kIsScaled = std::is_same_v<S, int8_t>;

  Rows(const Shape& s, const Token& token, int64_t capacity, unsigned seed)
      : d(s.d),
        capacity(capacity),
        rows(s.kv_heads * capacity * s.d),
        scales(s.kv_heads * capacity),
        rows_before(rows.values().size()),
        scales_before(scales.values().size()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t n = 0; n < s.kv_heads * token.length; ++n) {
      const int64_t key = n % token.length, row = n / token.length * capacity + key;
      const bool is_attended = key >= s.begin(token.length);
      for (int i = 0; i < d; ++i) {
        const float x = normal(random);
        if (!is_attended) continue;
        if constexpr (kIsScaled)
          rows.data()[row * d + i] = static_cast<int8_t>(std::clamp(x * 50, -127.0f, 127.0f));
        else
          rows.data()[row * d + i] = static_cast<S>(x);
      }
      if (is_attended) scales.data()[row] = 0.01f + 0.001f * static_cast<float>(key % 7);
    }
    std::memcpy(rows_before.data(), rows.data(), rows_before.size() * sizeof(S));
    std::memcpy(scales_before.data(), scales.data(), scales_before.size() * sizeof(float));
  }
  double at(int kv, int64_t key, int i) const {
    const int64_t row = kv * capacity + key;
    const double x = static_cast<double>(static_cast<float>(rows.values()[row * d + i]));
    return kIsScaled ? x * static_cast<double>(scales.values()[row]) : x;
  }
  /// Checks that exactly row `key` has changed, to T's elements `added` of each head.
  template <class T>
  void check_appended(int64_t key, const T* added, int kv_heads) const {
    for (int64_t row = 0; row < kv_heads * capacity; ++row) {
      const S* const now = rows.data() + row * d;
      if (row % capacity != key) {
        ASSERT_EQ(std::memcmp(now, rows_before.data() + row * d, d * sizeof(S)), 0) << row;
        ASSERT_TRUE(same_bits(scales.values()[row], scales_before[row])) << row;
        continue;
      }
      const T* const from = added + row / capacity * d;
      if constexpr (kIsScaled)
        check_quantized(now, scales.values()[row], from);
      else
        ASSERT_EQ(std::memcmp(now, from, d * sizeof(T)), 0) << row;
    }
  }
  template <class T>
  void check_quantized(const int8_t* now, float scale, const T* from) const {
    float largest = 0;
    for (int i = 0; i < d; ++i) largest = std::max(largest, std::fabs(static_cast<float>(from[i])));
    ASSERT_EQ(scale, largest / 127);
    for (int i = 0; i < d; ++i)
      ASSERT_EQ(static_cast<float>(now[i]), std::nearbyint(static_cast<float>(from[i]) * (1 / scale)));
  }

  int d;
  int64_t capacity;
  DeviceArray<S> rows;
  DeviceArray<float> scales;
  std::vector<S> rows_before;
  std::vector<float> scales_before;
};

/// A call of cached_attention, with its memory.
template <class T, class S>
struct Call {
  /// `spare`: rows of a cache behind the new one. `count`: of splits; 0: as many as the longest needs.
  Call(const Shape& s, std::vector<Token> of, int64_t spare = 1, int count = 0)
      : s(s), tokens(std::move(of)), qkv(tokens.size() * s.features() + s.shift) {
    int64_t most = 1;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Token& token = tokens[i];
      keys.push_back(std::make_unique<Rows<S>>(s, token, token.length + 1 + spare, 2 * token.seed));
      values.push_back(std::make_unique<Rows<S>>(s, token, token.length + 1 + spare, 2 * token.seed + 1));
      most = std::max(most, token.length + 1);
      std::mt19937 random(token.seed);
      std::normal_distribution<float> normal;
      T* const to = qkv.data() + s.shift + i * s.features();
      for (int j = 0; j < s.features(); ++j)
        to[j] = static_cast<T>(normal(random) * (j < s.heads * s.d ? s.factor : 1));
    }
    splits = {s.rows, count > 0 ? count : static_cast<int>((most + s.rows - 1) / s.rows)};
    out = std::make_unique<DeviceArray<T>>(tokens.size() * s.heads * s.d + 1);
    workspace = std::make_unique<DeviceArray<float>>(
        attention_workspace_bytes(static_cast<int>(tokens.size()), s.heads, s.d, splits) / sizeof(float));
    sequences = std::make_unique<DeviceArray<CachedSequence<S>>>(tokens.size(), [&](size_t i) {
      return CachedSequence<S>{keys[i]->rows.data(),     values[i]->rows.data(), keys[i]->scales.data(),
                               values[i]->scales.data(), keys[i]->capacity,      tokens[i].length};
    });
  }
  const T* token(size_t i) const { return qkv.data() + s.shift + i * s.features(); }
  void run(bool waits = true) const {
    const auto heads = [&](int first) {
      return Heads<const T>{token(0) + first * s.d, s.features(), s.d, /*row=*/-1};
    };
    cached_attention(
        CachedAttention<T, S>{out->data(), workspace->data(), heads(0), heads(s.heads),
                              heads(s.heads + s.kv_heads), sequences->data(), static_cast<int>(tokens.size()),
                              s.heads, s.kv_heads, s.d, s.group, s.first, s.window, splits},
        nullptr);
    if (waits) cudaDeviceSynchronize();
  }
  /// Returns the result of a token.
  std::vector<T> result(size_t i) const {
    const T* const from = out->data() + i * s.heads * s.d;
    return {from, from + s.heads * s.d};
  }

  Shape s;
  std::vector<Token> tokens;
  DeviceArray<T> qkv;
  std::vector<std::unique_ptr<Rows<S>>> keys, values;
  KeySplits splits;
  std::unique_ptr<DeviceArray<T>> out;
  std::unique_ptr<DeviceArray<float>> workspace;
  std::unique_ptr<DeviceArray<CachedSequence<S>>> sequences;
};

/// The attention of one query head in fp64, and the bound of its error.
struct Reference {
  std::vector<double> out, error;
};

/// The bound, in units of 2⁻²⁴ and relative to Σ w |v|. A score's products are added up by a lane's 16 fused
/// multiplications, 5 steps of a warp and 3 more roundings, and its error is that of the exponent; so is the
/// rounding of each difference of scores, which add up to at most their range. A weight is the product of
/// exp2's results (4 each, and 1 of the product), of which each iteration and each of 7 merges may add one;
/// an iteration has at least 8 keys. The sums over keys round once for each key of a part, a quarter of all
/// and 8 at most; 16 times when those of parts, warps and splits are added, and once for each split; and a
/// value of int8 rounds once. Both numerator and denominator have these errors, and the quotient is rounded
/// twice.
template <class T, class S>
Reference reference(const Call<T, S>& call, size_t token, int head) {
  const Shape& s = call.s;
  const int kv = (head + s.first) / s.group;
  const int64_t end = call.tokens[token].length + 1, begin = s.begin(end - 1);
  const auto count = static_cast<size_t>(end - begin);
  std::vector<double> scores(count), sizes(count);
  double most = -std::numeric_limits<double>::infinity();
  for (size_t j = 0; j < count; ++j) {
    for (int i = 0; i < s.d; ++i) {
      const double product = static_cast<double>(static_cast<float>(call.token(token)[head * s.d + i])) *
                             call.keys[token]->at(kv, begin + j, i) / std::sqrt(s.d);
      scores[j] += product;
      sizes[j] += std::abs(product);
    }
    most = std::max(most, scores[j]);
  }
  double sum = 0, error = 0;
  std::vector<double> weights(count), errors(count);
  const auto keys = static_cast<double>(std::min<int64_t>(s.rows, end));  // of a split
  const double of_sums = 4 + 5 * (keys / 8 + 1 + 7) + keys / 4 + 8 + 17 + call.splits.count;
  for (size_t j = 0; j < count; ++j) {
    weights[j] = std::exp(scores[j] - most);
    errors[j] = 24 * sizes[j] + most - scores[j] + of_sums;
    sum += weights[j];
    error += weights[j] * errors[j];
  }
  Reference result{std::vector<double>(s.d), std::vector<double>(s.d)};
  for (int i = 0; i < s.d; ++i) {
    double of_values = 0, size = 0;
    for (size_t j = 0; j < count; ++j) {
      const double value = call.values[token]->at(kv, begin + j, i), weight = weights[j] / sum;
      result.out[i] += weight * value;
      size += weight * std::abs(value);
      of_values += weight * std::abs(value) * errors[j];
    }
    result.error[i] = 1.01 * kUnit * (of_values + (error / sum + 2) * size) + rounding_to<T>(result.out[i]);
  }
  return result;
}

template <class T, class S>
void check_result(const Call<T, S>& call) {
  const Shape& s = call.s;
  for (size_t token = 0; token < call.tokens.size(); ++token) {
    SCOPED_TRACE(text(s, call.tokens[token]));
    const T* const added = call.token(token) + s.heads * s.d;
    call.keys[token]->check_appended(call.tokens[token].length, added, s.kv_heads);
    call.values[token]->check_appended(call.tokens[token].length, added + s.kv_heads * s.d, s.kv_heads);
    if (testing::Test::HasFatalFailure()) return;
    const std::vector<T> out = call.result(token);
    for (int head = 0; head < s.heads; ++head) {
      const Reference expected = reference(call, token, head);
      for (int i = 0; i < s.d; ++i)
        ASSERT_NEAR(static_cast<float>(out[head * s.d + i]), expected.out[i], expected.error[i])
            << "head " << head << " " << i;
    }
  }
  EXPECT_EQ(count_nan(call.out->values()), 1u);
}

}  // namespace shardwise::kernels::cuda::cached_attention_test

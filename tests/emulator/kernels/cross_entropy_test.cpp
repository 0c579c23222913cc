// Cross-entropy's CUDA kernels, on the emulator, against fp64.
#include "shardwise/kernels/cross_entropy_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::cross_entropy_test {
namespace {

constexpr int64_t kTokens = 4, kBegin = 1000, kIgnored = -100;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Rows of odd widths begin at every alignment.
std::vector<int> widths() {
  if (is_sanitized()) return {0, 1, 7, 520};
  return {0, 1, 2, 7, 8, 64, 65, 1000, 2048, 2056, 4099};
}

/// One label within the shard, one before it, one after it, one that is ignored.
DeviceArray<int64_t> labels(int v) {
  const int64_t of[kTokens] = {kBegin + v / 2, kBegin - 1, kBegin + v, kIgnored};
  return DeviceArray<int64_t>(kTokens, [&](size_t i) { return of[i]; });
}

template <class T>
void check_terms(int v) {
  const Values<T> x(kTokens * v, 7, 0);
  const DeviceArray<int64_t> label = labels(v);
  const DeviceArray<float> out(4 * kTokens);
  loss_terms(out.data(), 4, Logits<T>{x.device.data(), label.data(), kTokens, v, kBegin}, nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < kTokens; ++row) {
    const double* const of_row = x.wide.data() + row * v;
    const auto term = [&](int64_t i) { return static_cast<double>(out.values()[i * kTokens + row]); };
    const double max =
        v == 0 ? -std::numeric_limits<double>::infinity() : *std::max_element(of_row, of_row + v);
    double exp_sum = 0, shifted = 0, lowest = 0;
    for (int i = 0; i < v; ++i) {
      exp_sum += std::exp(of_row[i] - max);
      shifted += of_row[i] - max;
      lowest = std::min(lowest, of_row[i] - max);
    }
    ASSERT_EQ(term(0), max) << v;
    // Differences are rounded before exp, and each move of a thread's origin rounds four times.
    const double of_thread = 5 * (1 + static_cast<double>(v) / 1024);
    ASSERT_NEAR(term(1), exp_sum, kUnit * (roundings(v) + of_thread - lowest) * exp_sum) << v;
    const int64_t target = label.values()[row] - kBegin;
    ASSERT_EQ(term(2), target >= 0 && target < v ? of_row[target] : 0) << v << " " << row;
    ASSERT_NEAR(term(3), shifted, kUnit * (roundings(v) + of_thread) * v * -lowest) << v;
  }
}

TEST(CudaCrossEntropy, TermsMatchFp64InEveryOrder) {
  in_every_order([] {
    for (const int v : widths()) {
      check_terms<float>(v);
      check_terms<__nv_bfloat16>(v);
    }
  });
}

TEST(CudaCrossEntropy, ThreeTermsWriteNoFourth) {
  const Values<float> x(kTokens * 8, 7, 0);
  const DeviceArray<float> out(4 * kTokens);
  loss_terms(out.data(), 3, Logits<float>{x.device.data(), labels(8).data(), kTokens, 8, kBegin}, nullptr);
  cudaDeviceSynchronize();
  for (int64_t i = 0; i < 4 * kTokens; ++i) EXPECT_EQ(std::isnan(out.values()[i]), i >= 3 * kTokens) << i;
}

/// Returns the terms of one row.
std::vector<float> terms_of(const std::vector<float>& row) {
  const DeviceArray<float> x(row.size(), [&](size_t i) { return row[i]; }), out(4);
  const DeviceArray<int64_t> label(1, [](size_t) { return int64_t{0}; });
  loss_terms(out.data(), 4, Logits<float>{x.data(), label.data(), 1, static_cast<int>(row.size()), 0},
             nullptr);
  cudaDeviceSynchronize();
  return {out.values().begin(), out.values().end()};
}

TEST(CudaCrossEntropy, InfiniteLogitsAreThoseOfTheDefinition) {
  std::vector<float> row(600, -kInfinity);
  const std::vector<float> masked = terms_of(row);  // the origin is 0
  EXPECT_EQ(masked, (std::vector<float>{-kInfinity, 0, -kInfinity, -kInfinity}));
  row[577] = 2;
  const std::vector<float> one = terms_of(row);
  EXPECT_EQ(one, (std::vector<float>{2, 1, -kInfinity, -kInfinity}));
  row.assign(600, 0);
  row[3] = kInfinity;
  const std::vector<float> infinite = terms_of(row);
  EXPECT_EQ(infinite, (std::vector<float>{kInfinity, kInfinity, 0, kInfinity}));
  row[3] = std::nanf("");
  EXPECT_TRUE(std::isnan(terms_of(row)[1]));
}

TEST(CudaCrossEntropy, LogSumsOverShards) {
  // [shards, terms, tokens]: the second shard of token 1 has no logits but −inf.
  constexpr int kShards = 3, kTerms = 4, kN = 2;
  const double maxima[kShards][kN] = {{1, 5}, {3, -std::numeric_limits<double>::infinity()}, {2, 4}};
  const double sums[kShards][kN] = {{10, 2}, {1.5, 0}, {7, 3}};
  const DeviceArray<float> terms(kShards * kTerms * kN, [&](size_t i) {
    const size_t shard = i / (kTerms * kN), term = i / kN % kTerms, token = i % kN;
    return static_cast<float>(term == 0 ? maxima[shard][token] : term == 1 ? sums[shard][token] : 99);
  });
  const DeviceArray<float> out(kN);
  log_sums(out.data(), terms.data(), kShards, kTerms, kN, nullptr);
  cudaDeviceSynchronize();
  for (int token = 0; token < kN; ++token) {
    double max = maxima[0][token], sum = 0;
    for (const auto& shard : maxima) max = std::max(max, shard[token]);
    for (int i = 0; i < kShards; ++i) sum += std::exp(maxima[i][token] - max) * sums[i][token];
    EXPECT_NEAR(out.values()[token], std::log(sum), 10 * kUnit * std::abs(std::log(sum)));
  }
}

constexpr float kScale = 0.5f, kZLoss = 0.25f, kSmoothing = 0.125f, kClassWeight = 0.001f;

template <class T>
void check_backward(int v) {
  const Values<T> x(kTokens * v, 7, 0);
  const DeviceArray<int64_t> label = labels(v);
  const DeviceArray<float> lse(kTokens, [](size_t i) { return 3 + static_cast<float>(i) / 4; });
  cross_entropy_backward(CrossEntropyBackward<T>{.logits = x.device.data(),
                                                 .labels = label.data(),
                                                 .lse = lse.data(),
                                                 .n = kTokens,
                                                 .v = v,
                                                 .begin = kBegin,
                                                 .ignore_index = kIgnored,
                                                 .scale = kScale,
                                                 .z_loss = kZLoss,
                                                 .label_weight = 1 - kSmoothing,
                                                 .class_weight = kClassWeight},
                         nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < kTokens; ++row) {
    for (int i = 0; i < v; ++i) {
      const double logit = x.wide[row * v + i], of_row = lse.values()[row];
      const double softmax = std::exp(logit - of_row) * (1 + 2 * kZLoss * of_row);
      const double of_label = label.values()[row] == kBegin + i ? 1 - kSmoothing : 0;
      const double value = row == 3 ? 0 : (softmax - of_label - kClassWeight) * kScale;
      const double error =
          (6 + std::abs(logit - of_row)) * kUnit * (softmax + of_label + kClassWeight) * kScale;
      ASSERT_NEAR(static_cast<float>(x.device.values()[row * v + i]), value,
                  kUnitOf<T> * std::abs(value) + error)
          << row << " " << i << " of " << v;
    }
  }
}

TEST(CudaCrossEntropy, BackwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const int v : widths()) {
      check_backward<float>(v);
      check_backward<__nv_bfloat16>(v);
    }
  });
}

}  // namespace
}  // namespace shardwise::kernels::cuda::cross_entropy_test

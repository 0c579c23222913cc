// Keys of logits, on the emulator: sorting by them sorts logits, and the logits come back.
#include "shardwise/kernels/logit_keys_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::logit_keys_test {
namespace {

/// Sets every third logit to a special value, so that many are equal.
template <class T>
void set_special_values_(Values<T>& logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::nanf("");
  const float special[] = {0.0f, -0.0f, kInfinity, -kInfinity, kNaN, -kNaN, 1.5f, -1.5f, 0x1p-24f, -0x1p-24f};
  for (size_t i = 0; i < logits.wide.size(); i += 3) {
    const float value = special[i / 3 % std::size(special)];
    logits.device.data()[i] = static_cast<T>(value);
    logits.wide[i] = value;
  }
}

/// Returns whether index a is preferred to b.
bool is_better(const double* logits, int a, int b) {
  const bool a_is_nan = std::isnan(logits[a]), b_is_nan = std::isnan(logits[b]);
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (a_is_nan || logits[a] == logits[b]) return a < b;
  return logits[a] > logits[b];
}

template <class T>
void check(int64_t rows, int v) {
  Values<T> logits(rows * v, /*seed=*/1, /*mean=*/0);
  set_special_values_(logits);
  const DeviceArray<int64_t> keys(rows * v + 1);
  logit_keys(LogitKeys<T>{keys.data(), logits.device.data(), rows, v}, nullptr);
  cudaDeviceSynchronize();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t* const of_row = keys.values().data() + row * v;
    const double* const wide = &logits.wide[row * v];
    std::vector<int> by_logit(v);
    std::iota(by_logit.begin(), by_logit.end(), 0);
    std::vector<int> by_key = by_logit;
    std::ranges::sort(by_logit, [&](int a, int b) { return is_better(wide, a, b); });
    std::ranges::sort(by_key, [&](int a, int b) { return of_row[a] > of_row[b]; });
    ASSERT_EQ(by_key, by_logit) << row << " of " << rows << " x " << v;
  }
}

TEST(LogitKeys, SortAsTokensArePreferred) {
  in_every_order([] {
    for (const int v : {1, 2, 7, 64, 511, 512, 514, 1025}) {
      check<float>(3, v);
      check<__nv_bfloat16>(2, v);
      check<__half>(1, v);
    }
    check<float>(0, 8);
  });
}

}  // namespace
}  // namespace shardwise::kernels::cuda::logit_keys_test

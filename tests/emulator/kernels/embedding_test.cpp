// The embedding's CUDA kernels, on the emulator: copies, and sums of equal ids in the order of positions.
#include "shardwise/kernels/embedding_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::embedding_test {
namespace {

/// Ids are drawn from [low, high), of which the table has [begin, begin + v).
struct Case {
  int count, v, h;
  int64_t begin, low, high;
};

std::vector<int64_t> drawn_ids(const Case& c) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> uniform(c.low, c.high - 1);
  std::vector<int64_t> ids;
  for (int i = 0; i < c.count; ++i) ids.push_back(uniform(random));
  return ids;
}

template <class T>
void check_forward(const Case& c, size_t moved = 0) {
  const std::vector<int64_t> ids = drawn_ids(c);
  const DeviceArray<int64_t> device_ids(c.count, [&](size_t i) { return ids[i]; });
  const Values<T> table(size_t{1} * c.v * c.h + moved, 1, 0);
  const DeviceArray<T> y(size_t{1} * c.count * c.h + moved + 1);
  embedding(Embedding<T>{y.data() + moved, device_ids.data(), table.device.data() + moved, c.count, c.begin,
                         c.v, c.h},
            nullptr);
  cudaDeviceSynchronize();
  for (int i = 0; i < c.count; ++i) {
    const int64_t row = ids[i] - c.begin;
    for (int j = 0; j < c.h; ++j) {
      const T expected =
          row >= 0 && row < c.v ? table.device.data()[moved + row * c.h + j] : static_cast<T>(0.0f);
      ASSERT_TRUE(same_bits(y.values()[moved + size_t{1} * i * c.h + j], expected)) << i << " " << j;
    }
  }
  EXPECT_EQ(count_nan(y.values()), 1 + moved);
}

/// Additions are exactly those of a loop over the positions.
template <class T>
void check_backward(const Case& c, size_t moved = 0) {
  const std::vector<int64_t> ids = drawn_ids(c);
  const DeviceArray<int64_t> device_ids(c.count, [&](size_t i) { return ids[i]; });
  const Values<T> dy(size_t{1} * c.count * c.h + moved, 2, 0);
  const Values<float> grad(size_t{1} * c.v * c.h + moved, 3, 0);
  std::vector<float> expected(grad.wide.begin(), grad.wide.end());
  for (int i = 0; i < c.count; ++i) {
    const int64_t row = ids[i] - c.begin;
    if (row < 0 || row >= c.v) continue;
    for (int j = 0; j < c.h; ++j)
      expected[moved + row * c.h + j] +=
          static_cast<float>(dy.device.data()[moved + size_t{1} * i * c.h + j]);
  }
  const DeviceArray<int> order(c.count, [](size_t) { return 1 << 30; }),
      ends(c.count, [](size_t) { return 1 << 30; });
  embedding_backward(
      EmbeddingBackward<T>{grad.device.data() + moved, order.data(), ends.data(), dy.device.data() + moved,
                           device_ids.data(), c.count, c.begin, c.v, c.h},
      nullptr);
  cudaDeviceSynchronize();
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_TRUE(same_bits(grad.device.values()[i], expected[i]))
        << i / c.h << " " << i % c.h << " of " << c.h;
}

/// Shards in the middle, at the beginning and at the end; one id only; ids of no row; tables at the limits of
/// a block's rows.
std::vector<Case> cases() {
  if (is_sanitized())
    return {{0, 5, 8, 0, 0, 5}, {40, 7, 8, 3, 0, 12}, {270, 3, 5, 1, 0, 5}, {300, 1030, 1, 100, 0, 1200}};
  return {{0, 5, 8, 0, 0, 5},          {1, 1, 1, 0, 0, 1},          {40, 7, 8, 3, 0, 12},
          {9, 5, 7, 0, 0, 5},          {300, 3, 65, 1, 0, 5},       {256, 1, 2, 4, 4, 5},
          {257, 1, 8, 4, 3, 6},        {20, 8, 8, 100, 0, 100},     {5, 4, 1000, 2, 0, 8},
          {300, 1024, 4, 50, 0, 1200}, {600, 1025, 4, 50, 0, 1200}, {700, 2500, 1, 0, 0, 2500},
          {3, 4, 1028, 0, 0, 4},       {3, 4, 2056, 0, 0, 4}};
}

TEST(CudaEmbedding, ForwardCopiesRowsInEveryOrder) {
  in_every_order([] {
    for (const Case& c : cases()) {
      check_forward<float>(c);
      check_forward<__nv_bfloat16>(c);
      check_forward<__half>(c);
    }
  });
}

TEST(CudaEmbedding, BackwardAddsPositionsInTheirOrder) {
  in_every_order([] {
    for (const Case& c : cases()) {
      check_backward<float>(c);
      check_backward<__nv_bfloat16>(c);
    }
  });
}

TEST(CudaEmbedding, UnalignedRowsHaveTheSameBits) {
  const Case c = {10, 7, 8, 3, 0, 12};
  check_forward<float>(c, 1);
  check_backward<float>(c, 1);
  check_backward<__nv_bfloat16>(c, 1);
}

}  // namespace
}  // namespace shardwise::kernels::cuda::embedding_test

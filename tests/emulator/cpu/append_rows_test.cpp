// The rows that decode's CUDA kernels append to a KV cache of int8 against those of the CPU.
#include "shardwise/kernels/append_rows_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shardwise/kernels/stored_heads.h"
#include "tests/emulator/cpu/tensors.h"

namespace shardwise::kernels::cuda::append_rows_cpu_test {
namespace {

constexpr int kKvHeads = 5;
constexpr int64_t kCapacity = 4, kLength = 2;

/// Heads of random numbers, with a tie between two integers, of tiny numbers, of zeros, and with NaN and Inf.
template <class T>
at::Tensor heads(int64_t d) {
  at::Tensor x = at::randn({kKvHeads, 1, d});
  if (d > 1) {
    x[0][0][0] = 127;
    x[0][0][1] = -2.5;
  }
  x[1] *= 0x1p-120;
  x[2].zero_();
  x[3][0][d / 2] = std::nan("");
  x[4][0][d - 1] = -std::numeric_limits<float>::infinity();
  return x.to(kDtypeOf<T>);
}

template <class T>
void check(int64_t d) {
  const auto empty = [&] {
    return StoredHeads{at::full({kKvHeads, kCapacity, d}, 3, at::kChar),
                       at::full({kKvHeads, kCapacity}, 0.5, at::kFloat)};
  };
  const at::Tensor k = heads<T>(d), v = heads<T>(d);
  const StoredHeads before = empty(), keys = empty(), values = empty();
  const DeviceArray<int8_t> on_keys = on_device<int8_t>(before.rows),
                            on_values = on_device<int8_t>(before.rows);
  const DeviceArray<float> key_scales = on_device<float>(before.scales),
                           value_scales = on_device<float>(before.scales);
  const DeviceArray<T> new_k = on_device<T>(k), new_v = on_device<T>(v);
  const DeviceArray<CachedSequence<int8_t>> sequences(1, [&](size_t) {
    return CachedSequence<int8_t>{on_keys.data(),      on_values.data(), key_scales.data(),
                                  value_scales.data(), kCapacity,        kLength};
  });
  CachedAttention<T, int8_t> attention{};
  attention.k = {new_k.data(), kKvHeads * d, d, d};
  attention.v = {new_v.data(), kKvHeads * d, d, d};
  attention.sequences = sequences.data();
  attention.n = 1;
  attention.kv_heads = kKvHeads;
  attention.head_dim = static_cast<int>(d);
  append_rows(attention, nullptr);
  cudaDeviceSynchronize();
  store_rows_(keys, kLength, k);
  store_rows_(values, kLength, v);
  EXPECT_EQ(other_bits(on_keys, keys.rows), 0) << d;
  EXPECT_EQ(other_bits(on_values, values.rows), 0) << d;
  for (const auto& [scales, expected] :
       {std::pair(&key_scales, keys.scales), {&value_scales, values.scales}}) {
    const at::Tensor numbers = expected.nan_to_num(-1);  // a NaN has many bits
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      const float scale = scales->values()[i];
      EXPECT_EQ(std::isnan(scale) ? -1 : scale, numbers.const_data_ptr<float>()[i]) << d << " " << i;
    }
  }
}

TEST(CudaAppendRowsOnCpu, Int8RowsHaveTheCpusBits) {
  for (const int64_t d : {1, 7, 8, 20, 64, 128, 264, 512}) {
    check<float>(d);
    check<__nv_bfloat16>(d);
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::append_rows_cpu_test

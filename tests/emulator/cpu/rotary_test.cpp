// The rotary split's CUDA kernels against the CPU's. Those for the baseline of x86-64 round each product, as
// a GPU does; the others fuse one of the two products with the sum.
#include "shardwise/kernels/rotary.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shardwise/base/isa.h"
#include "shardwise/kernels/rotary_cuda.h"
#include "tests/emulator/cpu/tensors.h"

namespace shardwise::kernels::cuda::rotary_cpu_test {
namespace {

constexpr int64_t kS = 6, kB = 3, kA = 4, kK = 2;

/// The rounding of a product to fp32 that only one of both does is at most 2^-24 of it, the sum's as much;
/// and the results may then be rounded to two neighbors. Products are below 6 · 1.
template <class T>
double bound() {
  return 3 * 6 * 0x1p-24 + (std::is_same_v<T, float> ? 0 : 12 * 0x1p-8);
}

template <class T>
void compare(const DeviceArray<T>& array, const at::Tensor& expected, const char* name) {
  if (base::loops_isa() == base::Isa::baseline) {
    EXPECT_EQ(other_bits(array, expected), 0) << name;
    return;
  }
  const at::Tensor elements = expected.contiguous().to(at::kFloat);
  for (int64_t i = 0; i < elements.numel(); ++i)
    ASSERT_NEAR(static_cast<float>(array.values()[i]), elements.const_data_ptr<float>()[i], bound<T>())
        << name << i;
}

template <class T>
void check(int64_t d, int64_t half, bool by_sequence, bool has_padding) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) frequencies.push_back(1.0 / static_cast<double>(i + 1));
  kernels::HeadSplit split = {kA, kK, d, rotary_tables(frequencies, 20, at::kFloat), /*first_position=*/2};
  if (by_sequence) split.first_positions = {1, 9, 4};
  if (has_padding) split.valid = {{0, 6}, {4, 6}, {2, 5}};
  const at::Tensor qkv = at::randn({kS, kB, (kA + 2 * kK) * d}).clamp(-6, 6).to(kDtypeOf<T>);
  const Qkv grads = {at::randn({kB, kA, kS, d}).clamp(-6, 6).to(kDtypeOf<T>),
                     at::randn({kB, kK, kS, d}).clamp(-6, 6).to(kDtypeOf<T>),
                     at::randn({kB, kK, kS, d}).clamp(-6, 6).to(kDtypeOf<T>)};

  const DeviceArray<float> cos = on_device<float>(split.tables.cos), sin = on_device<float>(split.tables.sin);
  const DeviceArray<int64_t> first(kB, [&](size_t i) { return by_sequence ? split.first_positions[i] : 0; });
  const DeviceArray<int64_t> begins(kB, [&](size_t i) { return has_padding ? split.valid[i].begin : 0; });
  const cuda::HeadSplit layout = {kS,
                                  kB,
                                  kA,
                                  kK,
                                  static_cast<int>(d),
                                  cos.data(),
                                  sin.data(),
                                  static_cast<int>(half),
                                  2,
                                  by_sequence ? first.data() : nullptr,
                                  has_padding ? begins.data() : nullptr};
  const DeviceArray<T> on_qkv = on_device<T>(qkv), q(kS * kB * kA * d), k(kS * kB * kK * d),
                       v(kS * kB * kK * d);
  const auto heads = [&](auto* data, int count) {
    return contiguous_heads(data, count, kS, static_cast<int>(d));
  };
  cuda::split_rotary(
      SplitRotary<T>{heads(q.data(), kA), heads(k.data(), kK), heads(v.data(), kK), on_qkv.data(), layout},
      nullptr);
  const DeviceArray<T> dq = on_device<T>(grads.q), dk = on_device<T>(grads.k), dv = on_device<T>(grads.v),
                       d_qkv(qkv.numel());
  const auto const_heads = [&](const DeviceArray<T>& of, int count) {
    return heads(static_cast<const T*>(of.data()), count);
  };
  cuda::split_rotary_backward(SplitRotaryBackward<T>{d_qkv.data(), const_heads(dq, kA), const_heads(dk, kK),
                                                     const_heads(dv, kK), layout},
                              nullptr);
  cudaDeviceSynchronize();

  const Qkv expected = kernels::split_rotary(qkv, split);
  compare(q, expected.q, "q");
  compare(k, expected.k, "k");
  compare(v, expected.v, "v");
  compare(d_qkv, split_rotary_backward(grads, split), "d qkv");
}

TEST(CudaCpuRotary, HasTheBitsOfTheCpuWithoutFusedProducts) {
  for (const auto& [d, half] : {std::pair{64, 32}, {64, 16}, {80, 20}, {7, 3}}) {
    check<float>(d, half, /*by_sequence=*/false, /*has_padding=*/false);
    check<float>(d, half, /*by_sequence=*/false, /*has_padding=*/true);
    check<__nv_bfloat16>(d, half, /*by_sequence=*/true, /*has_padding=*/false);
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::rotary_cpu_test

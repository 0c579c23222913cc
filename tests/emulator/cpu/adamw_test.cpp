// The bits of AdamW's CUDA kernel are those of the CPU's loop without fused multiplications.
#include "shardwise/kernels/adamw.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/adamw_cuda.h"
#include "shardwise/kernels/adamw_isa.h"
#include "tests/emulator/cpu/tensors.h"

namespace shardwise::kernels::cuda::adamw_cpu_test {
namespace {

constexpr AdamWFactors<float> kFactors{.gradient_scale = 0.3f,
                                       .decay = 0.9995f,
                                       .rate1 = 0.1f,
                                       .rate2 = 0.05f,
                                       .beta2 = 0.95f,
                                       .step_size = 0.0037f,
                                       .inverse_root = 2.6f,
                                       .eps = 1e-8f};

/// T of the kernel, and the CPU's type of the same elements.
template <class T, class Cpu>
void check(int64_t n) {
  const at::Tensor weights = at::randn({n}), gradient = at::randn({n}), exp_avg = at::randn({n}),
                   exp_avg_sq = at::rand({n}), rounded = at::empty({n}, kDtypeOf<T>);
  const DeviceArray<float> on_weights = on_device<float>(weights), on_gradient = on_device<float>(gradient),
                           on_exp_avg = on_device<float>(exp_avg),
                           on_exp_avg_sq = on_device<float>(exp_avg_sq);
  const DeviceArray<T> on_rounded(n);
  const DeviceArray<AdamWTensor<T>> tensor(1, [&](size_t) {
    return AdamWTensor<T>{on_weights.data(),    on_gradient.data(), on_exp_avg.data(),
                          on_exp_avg_sq.data(), on_rounded.data(),  n,
                          kFactors.decay};
  });
  const std::vector<int64_t> first = first_chunks(std::vector{n});
  const DeviceArray<int64_t> on_first(first.size(), [&](size_t i) { return first[i]; });
  const DeviceArray<float> scale(1, [](size_t) { return kFactors.gradient_scale; });
  cuda::adamw(AdamW<T>{tensor.data(),
                       {on_first.data(), 1, first.back()},
                       scale.data(),
                       kFactors.rate1,
                       kFactors.rate2,
                       kFactors.beta2,
                       kFactors.step_size,
                       kFactors.inverse_root,
                       kFactors.eps,
                       /*zeroes_gradient=*/false},
              nullptr);
  cudaDeviceSynchronize();
  adamw_loops<Cpu>(base::Isa::baseline)
      .update({weights.mutable_data_ptr<float>(), gradient.mutable_data_ptr<float>(),
               exp_avg.mutable_data_ptr<float>(), exp_avg_sq.mutable_data_ptr<float>(),
               static_cast<Cpu*>(rounded.mutable_data_ptr())},
              0, n, kFactors);
  EXPECT_EQ(other_bits(on_weights, weights), 0);
  EXPECT_EQ(other_bits(on_exp_avg, exp_avg), 0);
  EXPECT_EQ(other_bits(on_exp_avg_sq, exp_avg_sq), 0);
  if constexpr (!std::is_same_v<T, float>) EXPECT_EQ(other_bits(on_rounded, rounded), 0);
}

TEST(CudaCpuAdamW, HasTheBitsOfTheCpu) {
  for (const int64_t n : {1, 7, 4096, 5003}) {
    check<float, float>(n);
    check<__nv_bfloat16, base::Bf16>(n);
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::adamw_cpu_test

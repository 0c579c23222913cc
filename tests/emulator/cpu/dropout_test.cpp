// The bits of dropout's CUDA kernels are those of the CPU's.
#include "shardwise/kernels/dropout.h"

#include <ATen/ops/add.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/dropout_cuda.h"
#include "tests/emulator/cpu/tensors.h"

namespace shardwise::kernels::cuda::dropout_cpu_test {
namespace {

struct Case {
  int64_t rows, h, first;
};

template <class T>
void check(const Case& c, double p) {
  const RandomKey key = RandomKey::of(12).fold(3);
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(kDtypeOf<T>); };
  const at::Tensor x = random({c.rows, c.h}), bias = random({c.h}), residual = random({c.rows, c.h});
  const DeviceArray<T> on_x = on_device<T>(x), on_bias = on_device<T>(bias),
                       on_residual = on_device<T>(residual);
  const DeviceArray<T> alone(x.numel()), summed(x.numel());
  const auto first = static_cast<uint64_t>(c.first);
  cuda::dropout(Dropout<T>{alone.data(), on_x.data(), nullptr, nullptr, 1, x.numel(), p, key.value, first},
                nullptr);
  cuda::dropout(Dropout<T>{summed.data(), on_x.data(), on_bias.data(), on_residual.data(), c.rows, c.h, p,
                           key.value, first},
                nullptr);
  cudaDeviceSynchronize();
  EXPECT_EQ(other_bits(alone, kernels::dropout(x, p, key, c.first)), 0) << c.h << " " << c.first << " " << p;
  const at::Tensor sum = at::add(residual, kernels::dropout(at::add(x, bias), p, key, c.first));
  EXPECT_EQ(other_bits(summed, sum), 0) << c.h << " " << c.first << " " << p;
}

TEST(CudaCpuDropout, HasTheBitsOfTheCpu) {
  for (const Case& c : {Case{3, 64, 0},
                        {3, 64, 320},
                        {5, 7, 1},
                        {2, 65, 30},
                        {1, 1000, (int64_t{1} << 36) + 5},
                        {2, 4128, 0},
                        {2, 96, 33}}) {
    for (const double p : {0.0, 0.1, 0.5, 1.0}) {
      check<float>(c, p);
      check<__nv_bfloat16>(c, p);
    }
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::dropout_cpu_test

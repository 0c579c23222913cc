// The bits of the embedding's CUDA kernels are those of the CPU's.
#include "shardwise/kernels/embedding.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/embedding_cuda.h"
#include "tests/emulator/cpu/tensors.h"

namespace shardwise::kernels::cuda::embedding_cpu_test {
namespace {

struct Case {
  int count, v, h, begin;
};

template <class T>
void check(const Case& c) {
  const at::Tensor ids = at::randint(c.v + 2 * c.begin, {c.count}, at::kLong);
  const at::Tensor table = at::randn({c.v, c.h}).to(kDtypeOf<T>),
                   dy = at::randn({c.count, c.h}).to(kDtypeOf<T>);
  at::Tensor y = at::empty_like(dy), grad = at::randn({c.v, c.h});
  const DeviceArray<int64_t> on_ids = on_device<int64_t>(ids);
  const DeviceArray<T> on_table = on_device<T>(table), on_dy = on_device<T>(dy), on_y(dy.numel());
  const DeviceArray<float> on_grad = on_device<float>(grad);
  const DeviceArray<int> order(c.count), ends(c.count);
  cuda::embedding(Embedding<T>{on_y.data(), on_ids.data(), on_table.data(), c.count, c.begin, c.v, c.h},
                  nullptr);
  cuda::embedding_backward(EmbeddingBackward<T>{on_grad.data(), order.data(), ends.data(), on_dy.data(),
                                                on_ids.data(), c.count, c.begin, c.v, c.h},
                           nullptr);
  cudaDeviceSynchronize();
  kernels::embedding_out(y, ids, table, c.begin);
  kernels::embedding_backward_(grad, dy, ids, c.begin);
  EXPECT_EQ(other_bits(on_y, y), 0) << c.count << " " << c.v << " " << c.h;
  EXPECT_EQ(other_bits(on_grad, grad), 0) << c.count << " " << c.v << " " << c.h;
}

TEST(CudaCpuEmbedding, HasTheBitsOfTheCpu) {
  for (const Case& c :
       {Case{300, 20, 64, 5}, {300, 20, 65, 0}, {1, 1, 1, 0}, {700, 1500, 8, 100}, {64, 2, 1000, 1}}) {
    check<float>(c);
    check<__nv_bfloat16>(c);
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::embedding_cpu_test

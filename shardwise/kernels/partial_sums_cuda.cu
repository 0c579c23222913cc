#include "shardwise/kernels/partial_sums_cuda.h"

#include "shardwise/kernels/device_code.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    add_partial_rows(float* sum, const float* partial, int blocks, int h) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= h) return;
  float all = 0;
  for (int block = 0; block < blocks; ++block) all += partial[int64_t{block} * h + column];
  sum[column] += all;
}

}  // namespace

void add_partial_sums(float* sum, const float* partial, int blocks, int h, cudaStream_t stream) {
  launch(add_partial_rows, (h + kThreads - 1) / kThreads, kThreads, stream, sum, partial, blocks, h);
}

}  // namespace shardwise::kernels::cuda

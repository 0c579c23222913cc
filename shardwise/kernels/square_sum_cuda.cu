#include "shardwise/kernels/square_sum_cuda.h"

#include "shardwise/kernels/chunk_cuda.h"
#include "shardwise/kernels/row_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// Returns the sum over the block to its first thread. The block has kChunkThreads.
__device__ double block_sum_fp64(double x) {
  constexpr int kWarps = kChunkThreads / 32;
  struct Sums {
    double of_warp[kWarps];
  };
  auto& shared = block_shared<Sums>();
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
  if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kWarps; ++warp) sum += shared.of_warp[warp];
  return sum;
}

__device__ double squared(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

__global__ void __launch_bounds__(kChunkThreads)
    square_sum_chunks(double* partial, const SummedTensor* tensors, const Chunks chunks) {
  const Chunk chunk = chunk_of_block(chunks);
  const SummedTensor tensor = tensors[chunk.tensor];
  const float* const x = global(tensor.data) + chunk.begin;
  const int n = elements_of(chunk, tensor.n);
  double sum = 0;
  if (n == kChunkElements && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    constexpr int kPacks = kChunkElements / 4 / kChunkThreads;
    RowPart<float, 4, kPacks> part;
    part.load(x, kChunkElements);
    for_each_element<4, kPacks>(kChunkElements, [&](int p, int i, int) { sum += squared(part.at(p, i)); });
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += kChunkThreads) sum += squared(x[i]);
  }
  sum = block_sum_fp64(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kChunkThreads)
    add_chunks(double* sum, const double* partial, int64_t chunks) {
  double all = 0;
#pragma unroll 1
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kChunkThreads) all += partial[chunk];
  all = block_sum_fp64(all);
  if (threadIdx.x == 0) *sum = all;
}

__global__ void clip_scale_of(float* scale, const double* sum, const double* loss, double max_norm) {
  const double factor = max_norm / (sqrt(*sum) + 1e-6), not_finite = (*sum + *loss) * 0;
  *scale = (max_norm > 0 && factor < 1 ? static_cast<float>(factor) : 1.0f) + static_cast<float>(not_finite);
}

}  // namespace

void square_sum(const SquareSum& s, cudaStream_t stream) {
  if (s.chunks.count > 0)
    launch(square_sum_chunks, static_cast<unsigned>(s.chunks.count), kChunkThreads, stream, s.partial,
           s.tensors, s.chunks);
  launch(add_chunks, 1, kChunkThreads, stream, s.sum, s.partial, s.chunks.count);
}

void clip_scale(float* scale, const double* sum, const double* loss, double max_norm, cudaStream_t stream) {
  launch(clip_scale_of, 1, 1, stream, scale, sum, loss, max_norm);
}

}  // namespace shardwise::kernels::cuda

// A row of features in the registers of a block's threads, read and written 16 bytes at a time. For
// *_cuda.cu.
#pragma once
#include "shardwise/kernels/device_code.h"

namespace shardwise::kernels::cuda {

/// Threads of a block that has one row at a time.
inline constexpr int kMostRowThreads = 512;
/// And one whose rows packs do not fit.
inline constexpr int kAnyRowThreads = 256;

/// N elements that one instruction reads or writes.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T at[N];
};

/// Calls visit(pack, i, column) for every element that the thread holds of a row of h features in `kPacks`
/// packs: thread t has the packs t, t + threads, t + 2·threads.
template <int N, int kPacks, class Visit>
__device__ void for_each_element(int h, Visit visit) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = threadIdx.x + p * blockDim.x;
    if (pack >= h / N) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) visit(p, i, pack * N + i);
  }
}

/// A thread's elements of a row.
template <class T, int N, int kPacks>
struct RowPart {
  Pack<T, N> packs[kPacks];

  __device__ void load(const T* row, int h) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = threadIdx.x + p * blockDim.x;
      if (pack < h / N) packs[p] = reinterpret_cast<const Pack<T, N>*>(row)[pack];
    }
  }
  __device__ void store(T* row, int h) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = threadIdx.x + p * blockDim.x;
      if (pack < h / N) reinterpret_cast<Pack<T, N>*>(row)[pack] = packs[p];
    }
  }
  __device__ float at(int p, int i) const {
    return static_cast<float>(packs[p].at[i]);
  }
};

/// Stores a thread's fp32 sums of its elements.
template <int N, int kPacks>
__device__ void store_sums(float* row, const float (&sums)[kPacks][N], int h) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = threadIdx.x + p * blockDim.x;
    if (pack >= h / N) continue;
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<Pack<float, 4>*>(row + pack * N + i) = {sums[p][i], sums[p][i + 1], sums[p][i + 2],
                                                                sums[p][i + 3]};
  }
}

__device__ inline float warp_sum(float x) {
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
  return x;
}

/// Replaces each value by its sum over the block, in an order that only the number of threads sets. `turn`
/// counts the block's sums: two in turn use different memory, so that one barrier is enough. The block has
/// whole warps.
template <int kCount>
__device__ void block_sums(float (&values)[kCount], int turn) {
  struct Sums {
    float of_warp[2][kCount][32];
  };
  auto& shared = block_shared<Sums>().of_warp[turn % 2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int i = 0; i < kCount; ++i) {
    const float sum = warp_sum(values[i]);
    if (lane == 0) shared[i][warp] = sum;
  }
  __syncthreads();
  for (int i = 0; i < kCount; ++i) values[i] = warp_sum(lane < warps ? shared[i][lane] : 0.0f);
}

/// Returns the sum over the block to all of its threads, as block_sums.
__device__ inline float block_sum(float value, int turn) {
  float values[1] = {value};
  block_sums(values, turn);
  return values[0];
}

}  // namespace shardwise::kernels::cuda

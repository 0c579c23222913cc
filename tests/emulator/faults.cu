#include "tests/emulator/faults.h"

#include "shardwise/kernels/device_code.h"

namespace shardwise::emulator_faults {
namespace {

using kernels::cuda::block_shared;
using kernels::cuda::launch;
using Row = float[kThreads];

__global__ void reverse_rows(float* out, const float* in, bool waits) {
  auto& row = block_shared<Row>();
  const int at = blockIdx.x * kThreads + threadIdx.x;
  row[threadIdx.x] = in[at];
  if (waits) __syncthreads();
  out[at] = row[kThreads - 1 - threadIdx.x];
}

__global__ void reverse_rows_in_turn(float* out, const float* in, int rows, bool waits) {
  auto& row = block_shared<Row>();
  for (int i = 0; i < rows; ++i) {
    row[threadIdx.x] = in[i * kThreads + threadIdx.x];
    __syncthreads();
    out[i * kThreads + threadIdx.x] = row[kThreads - 1 - threadIdx.x];
    if (waits) __syncthreads();
  }
}

struct alignas(16) Pack {
  float at[4];
};

__global__ void copy_each_pack(float* to, const float* from, int packs) {
  for (int i = threadIdx.x; i < packs; i += kThreads)
    reinterpret_cast<Pack*>(to)[i] = reinterpret_cast<const Pack*>(from)[i];
}

__global__ void count_threads(unsigned* sum, bool is_atomic) {
  if (is_atomic) {
    atomicAdd(sum, 1u);
  } else {
    *sum += 1;
  }
}

__global__ void pass_on_values(float* to, float* from, unsigned* flag, bool releases, bool waits, bool sets) {
  if (blockIdx.x == 0) {
    from[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (waits) __syncthreads();
    if (threadIdx.x != 0 || !sets) return;
    if (releases) {
      kernels::cuda::store_release(flag, 1);
    } else {
      kernels::cuda::store_relaxed(flag, 1);
    }
    return;
  }
  while (kernels::cuda::load_acquire(flag) == 0) kernels::cuda::pause();
  to[(blockIdx.x - 1) * kThreads + threadIdx.x] = from[threadIdx.x];
}

__global__ void double_each(float* to, const float* from, int n) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) to[at] = 2 * from[at];
}

__global__ void sum_warp(float* out, Divergence divergence) {
  const bool is_upper = threadIdx.x >= 16;
  if (divergence == Divergence::early_exit && threadIdx.x == 40) return;
  if (divergence == Divergence::other_barrier && is_upper) {
    out[threadIdx.x] = 0;
    __syncthreads();
  } else {
    __syncthreads();
    out[threadIdx.x] = 0;
  }
  const int rounds = divergence == Divergence::longer_loop && is_upper ? 3 : 2;
  for (int i = 0; i < rounds; ++i) __syncthreads();
  unsigned mask = ~0u;
  if (divergence == Divergence::outside_mask) mask = 0xffff;
  if (divergence == Divergence::other_mask && is_upper) mask = 0xffffff00;
  if (divergence == Divergence::absent_lane && threadIdx.x == 5) return;
  float sum = static_cast<float>(threadIdx.x);
  for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(mask, sum, bit);
  out[threadIdx.x] = sum;
}

__global__ void rank_each_lane(unsigned* out) {
  const unsigned lane = threadIdx.x % 32, equal = __match_any_sync(~0u, lane % 3);
  out[threadIdx.x] = 100 * __popc(equal & ((1u << lane) - 1)) + __shfl_up_sync(~0u, lane, 2);
}

__global__ void choose_each(unsigned* out, const unsigned* in, const unsigned* selectors) {
  const unsigned x = __ldcs(in + threadIdx.x);
  out[threadIdx.x] = __byte_perm(x, ~x, selectors[threadIdx.x]);
}

}  // namespace

void reverse(float* out, const float* in, int rows, bool waits, cudaStream_t stream) {
  launch(reverse_rows, rows, kThreads, stream, out, in, waits);
}

void reverse_in_turn(float* out, const float* in, int rows, bool waits, cudaStream_t stream) {
  launch(reverse_rows_in_turn, 1, kThreads, stream, out, in, rows, waits);
}

void copy_packs(float* to, const float* from, int n, int more, int shift, cudaStream_t stream) {
  launch(copy_each_pack, 1, kThreads, stream, to + shift, from + shift, n / 4 + more);
}

void count(unsigned* sum, int blocks, bool is_atomic, cudaStream_t stream) {
  launch(count_threads, blocks, kThreads, stream, sum, is_atomic);
}

void pass_on(float* to, float* from, unsigned* flag, int blocks, bool releases, bool waits, bool sets,
             cudaStream_t stream) {
  launch(pass_on_values, blocks, kThreads, stream, to, from, flag, releases, waits, sets);
}

void twice(float* to, const float* from, int n, cudaStream_t stream) {
  launch(double_each, (n + kThreads - 1) / kThreads, kThreads, stream, to, from, n);
}

void sum_of_warp(float* out, Divergence divergence, cudaStream_t stream) {
  launch(sum_warp, 1, kThreads, stream, out, divergence);
}

void rank_lanes(unsigned* out, cudaStream_t stream) {
  launch(rank_each_lane, 1, kThreads, stream, out);
}

void choose_bytes(unsigned* out, const unsigned* in, const unsigned* selectors, cudaStream_t stream) {
  launch(choose_each, 1, kThreads, stream, out, in, selectors);
}

}  // namespace shardwise::emulator_faults

// Rows of elements that are computed one by one: a thread has one pack, and a row as many blocks as it needs.
// For *_cuda.cu.
#pragma once
#include <algorithm>
#include <type_traits>

#include "shardwise/kernels/row_cuda.h"
#include "shardwise/kernels/row_launch_cuda.h"

namespace shardwise::kernels::cuda {

inline constexpr int kPackThreads = 256;

struct PackPlace {
  int64_t row, pack;
};
/// Returns the thread's pack, of rows with `parts` blocks each. The last block's may be beyond the row.
__device__ inline PackPlace pack_place(unsigned parts) {
  return {blockIdx.x / parts, int64_t{blockIdx.x % parts} * blockDim.x + threadIdx.x};
}

template <int N, class T>
__device__ auto* as_packs(T* elements) {
  using Packs = std::conditional_t<std::is_const_v<T>, const Pack<std::remove_const_t<T>, N>, Pack<T, N>>;
  return reinterpret_cast<Packs*>(elements);
}

/// Load or store pack `pack` of a row of fp32 numbers.
template <int N>
__device__ void load_floats(float (&to)[N], const float* row, int64_t pack) {
  constexpr int kStep = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const Pack<float, kStep> part = as_packs<kStep>(row)[(pack * N + i) / kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[i + j] = part.at[j];
  }
}
template <int N>
__device__ void store_floats(float* row, int64_t pack, const float (&from)[N]) {
  constexpr int kStep = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    Pack<float, kStep> part;
#pragma unroll
    for (int j = 0; j < kStep; ++j) part.at[j] = from[i + j];
    as_packs<kStep>(row)[(pack * N + i) / kStep] = part;
  }
}

/// Calls run(std::integral_constant<int, N>) for packs of 16 bytes, or of one element where those do not fit.
template <class T, class Run>
void with_pack(int64_t width, bool are_aligned, const Run& run) {
  constexpr int kPack = 16 / sizeof(T);
  if (are_aligned && width % kPack == 0) return run(std::integral_constant<int, kPack>{});
  run(std::integral_constant<int, 1>{});
}

/// Queues kernel(arguments..., parts) for `rows` rows of `packs` packs. Needs rows · parts < 2³¹.
template <class... Parameters, class... Arguments>
void launch_packs(void (*kernel)(Parameters...), int64_t rows, int64_t packs, cudaStream_t stream,
                  Arguments... arguments) {
  const int threads = whole_warps(static_cast<int>(std::min<int64_t>(packs, kPackThreads)));
  const int64_t parts = (packs + threads - 1) / threads;
  launch(kernel, static_cast<unsigned>(rows * parts), threads, stream, arguments...,
         static_cast<unsigned>(parts));
}

}  // namespace shardwise::kernels::cuda

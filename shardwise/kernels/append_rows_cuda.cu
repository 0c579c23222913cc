#include "shardwise/kernels/append_rows_cuda.h"

#include <bit>

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kWarps = 4;  // of a block; each has a row
constexpr float kMost = 127;

/// Copies a row of packs of N elements.
template <int N, class T>
__device__ void copy_row(T* to, const T* from, int d) {
  for (int pack = threadIdx.x % 32; pack < d / N; pack += 32) as_packs<N>(to)[pack] = as_packs<N>(from)[pack];
}

/// Rounds to multiples of the returned scale, the row's largest magnitude / 127. NaN and Inf make it NaN.
template <int N, class T>
__device__ float quantize_row(int8_t* to, const T* from, int d) {
  float largest = 0, zero_or_nan = 0;
  const auto for_each = [&](const auto& visit) {
    for (int pack = threadIdx.x % 32; pack < d / N; pack += 32) visit(pack, as_packs<N>(from)[pack]);
  };
  for_each([&](int, Pack<T, N> pack) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      largest = fmaxf(largest, fabsf(static_cast<float>(pack.at[i])));
      zero_or_nan += static_cast<float>(pack.at[i]) * 0;
    }
  });
  for (int bit = 16; bit > 0; bit /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
  const float scale = largest / kMost + warp_sum(zero_or_nan), factor = scale > 0 ? 1 / scale : 0;
  for_each([&](int at, Pack<T, N> pack) {
    Pack<int8_t, N> rounded;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      constexpr float kShift = 12582912.0f;  // 1.5 · 2^23: the sum is rounded to an integer, ties to even
      float x = static_cast<float>(pack.at[i]) * factor;
      x = x >= -kMost ? x : -kMost;  // also NaN
      x = x <= kMost ? x : kMost;
      rounded.at[i] = static_cast<int8_t>(static_cast<int>((x + kShift) - kShift));
    }
    as_packs<N>(to)[at] = rounded;
  });
  return scale;
}

/// blockIdx.y chooses keys or values. A warp has the row of a sequence's KV head.
template <int N, class T, class S>
__global__ void __launch_bounds__(32 * kWarps) append_head_rows(CachedAttention<T, S> by) {
  const unsigned row = blockIdx.x * kWarps + threadIdx.x / 32, i = row / by.kv_heads;
  const int head = static_cast<int>(row % by.kv_heads), d = by.head_dim;
  if (i >= static_cast<unsigned>(by.n)) return;
  const Heads<const T> heads = blockIdx.y == 0 ? by.k : by.v;
  const CachedSequence<S>& sequence = by.sequences[i];
  const int64_t at = head * sequence.capacity + sequence.length;
  const T* const from = heads.data + i * heads.batch + head * heads.head;
  S* const to = global(blockIdx.y == 0 ? sequence.keys : sequence.values) + at * d;
  if constexpr (std::is_same_v<S, T>) {
    copy_row<N>(to, from, d);
  } else {
    const float scale = quantize_row<N>(to, from, d);
    float* const scales = global(blockIdx.y == 0 ? sequence.key_scales : sequence.value_scales);
    if (threadIdx.x % 32 == 0) scales[at] = scale;
  }
}

template <class T>
bool has_whole_packs(const Heads<const T>& heads) {
  constexpr int kPack = 16 / sizeof(T);
  return is_aligned(heads.data) && heads.batch % kPack == 0 && heads.head % kPack == 0;
}

}  // namespace

template <class T, class S>
void append_rows(const CachedAttention<T, S>& by, cudaStream_t stream) {
  with_pack<T>(by.head_dim, has_whole_packs(by.k) && has_whole_packs(by.v),
               [&]<int N>(std::integral_constant<int, N>) {
                 const unsigned rows = static_cast<unsigned>(by.n) * static_cast<unsigned>(by.kv_heads);
                 launch(append_head_rows<N, T, S>, dim3((rows + kWarps - 1) / kWarps, 2), 32 * kWarps, stream,
                        by);
               });
}
template void append_rows(const CachedAttention<float>&, cudaStream_t);
template void append_rows(const CachedAttention<__nv_bfloat16>&, cudaStream_t);
template void append_rows(const CachedAttention<__half>&, cudaStream_t);
template void append_rows(const CachedAttention<float, int8_t>&, cudaStream_t);
template void append_rows(const CachedAttention<__nv_bfloat16, int8_t>&, cudaStream_t);
template void append_rows(const CachedAttention<__half, int8_t>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

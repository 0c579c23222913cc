#include "shardwise/kernels/rotary_cuda.h"

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kHeadThreads = 256;
// At once on a multiprocessor. For sm_100 nvcc would spill registers to have five.
constexpr int kHeadBlocks = 4;

/// q, k and v or their gradients.
template <class T>
struct ThreeHeads {
  Heads<T> q, k, v;
};

/// Returns the head of which the threads of this y have the elements, of s · b · heads; or none beyond them.
struct BlockHead {
  HeadPlace at;
  bool is_inside;
};
__device__ BlockHead block_head(const HeadSplit& split) {
  const unsigned heads = split.heads + 2 * split.kv_heads, b = split.b;
  const int64_t n = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  return {head_place(static_cast<unsigned>(n), heads, b), n < split.s * b * heads};
}

/// Returns the head of q, k or v that is head `at` of a token.
template <class T>
__device__ T* head_of_three(const ThreeHeads<T>& three, const HeadSplit& split, HeadPlace at) {
  if (at.head < split.heads) return head_in(three.q, at);
  at.head -= split.heads;
  if (at.head < split.kv_heads) return head_in(three.k, at);
  at.head -= split.kv_heads;
  return head_in(three.v, at);
}

/// Copies a head; rotates it if it is of q or k, by sign · sin.
template <class T, int N>
__device__ void rotate_head(T* to, const T* from, const HeadSplit& split, const HeadPlace& at, float sign) {
  const int packs = split.head_dim / N,
            half_packs = at.head < split.heads + split.kv_heads ? split.half / N : 0;
  const int64_t angles = angles_of(split, at);
  for (int t = threadIdx.x; t < (packs + 1) / 2; t += blockDim.x) {
    const PackPair pair = packs_of_thread(t, half_packs);
    const bool has_second = pair.second < packs;
    Pack<T, N> first = as_packs<N>(from)[pair.first], second = {};
    if (has_second) second = as_packs<N>(from)[pair.second];
    if (pair.is_rotated) {
      float cos[N], sin[N];
      load_floats(cos, split.cos + angles, pair.first);
      load_floats(sin, split.sin + angles, pair.first);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const RotatedPair turned =
            rotated(static_cast<float>(first.at[i]), static_cast<float>(second.at[i]), cos[i], sign * sin[i]);
        first.at[i] = static_cast<T>(turned.first);
        second.at[i] = static_cast<T>(turned.second);
      }
    }
    as_packs<N>(to)[pair.first] = first;
    if (has_second) as_packs<N>(to)[pair.second] = second;
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kHeadThreads, kHeadBlocks)
    split_rotary_heads(ThreeHeads<T> to, const T* qkv, HeadSplit split) {
  const auto [at, is_inside] = block_head(split);
  if (!is_inside) return;
  rotate_head<T, N>(head_of_three(to, split, at), head_in(qkv, split, 0, at), split, at, /*sign=*/1);
}

template <class T, int N>
__global__ void __launch_bounds__(kHeadThreads, kHeadBlocks)
    split_rotary_backward_heads(T* d_qkv, ThreeHeads<const T> from, HeadSplit split) {
  const auto [at, is_inside] = block_head(split);
  if (!is_inside) return;
  rotate_head<T, N>(head_in(d_qkv, split, 0, at), head_of_three(from, split, at), split, at, /*sign=*/-1);
}

template <class T>
bool fits_packs(const ThreeHeads<T>& three, const HeadSplit& split, const void* qkv) {
  constexpr int kPack = 16 / sizeof(T);
  const auto fits = [](const Heads<T>& heads) {
    return is_aligned(heads.data) && heads.batch % kPack == 0 && heads.head % kPack == 0 &&
           heads.row % kPack == 0;
  };
  return fits(three.q) && fits(three.k) && fits(three.v) && is_aligned(static_cast<const char*>(qkv)) &&
         is_aligned(split.cos) && is_aligned(split.sin) && split.half % kPack == 0;
}

/// Queues kernel(to, from, split) with threads for packs of N elements.
template <class To, class From>
void launch_heads(void (*kernel)(To, From, HeadSplit), int n, To to, From from, const HeadSplit& split,
                  cudaStream_t stream) {
  const int64_t heads = split.s * split.b * (split.heads + 2 * split.kv_heads);
  if (heads == 0) return;
  const int of_head = std::min((split.head_dim / n + 1) / 2, kHeadThreads), of_block = kHeadThreads / of_head;
  launch(kernel, static_cast<unsigned>((heads + of_block - 1) / of_block),
         dim3(static_cast<unsigned>(of_head), static_cast<unsigned>(of_block)), stream, to, from, split);
}

}  // namespace

template <class T>
void split_rotary(const SplitRotary<T>& r, cudaStream_t stream) {
  const ThreeHeads<T> to = {r.q, r.k, r.v};
  with_pack<T>(r.split.head_dim, fits_packs(to, r.split, r.qkv),
               [&](auto n) { launch_heads(split_rotary_heads<T, n>, n, to, r.qkv, r.split, stream); });
}
template void split_rotary(const SplitRotary<float>&, cudaStream_t);
template void split_rotary(const SplitRotary<__nv_bfloat16>&, cudaStream_t);
template void split_rotary(const SplitRotary<__half>&, cudaStream_t);

template <class T>
void split_rotary_backward(const SplitRotaryBackward<T>& r, cudaStream_t stream) {
  const ThreeHeads<const T> from = {r.dq, r.dk, r.dv};
  with_pack<T>(r.split.head_dim, fits_packs(from, r.split, r.d_qkv), [&](auto n) {
    launch_heads(split_rotary_backward_heads<T, n>, n, r.d_qkv, from, r.split, stream);
  });
}
template void split_rotary_backward(const SplitRotaryBackward<float>&, cudaStream_t);
template void split_rotary_backward(const SplitRotaryBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

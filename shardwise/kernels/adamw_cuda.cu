#include "shardwise/kernels/adamw_cuda.h"

#include <type_traits>

#include "shardwise/kernels/chunk_cuda.h"
#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// The elements of one tensor that a thread has at a time.
template <int N>
struct Elements {
  float weight[N], gradient[N], exp_avg[N], exp_avg_sq[N];
};

/// Rounds each operation, as the CPU's loop without FMA instructions does (adamw_isa.cpp): the bits are
/// equal.
template <class T, int N>
__device__ void update(Elements<N>& x, const AdamW<T>& by, float gradient_scale, float decay) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = x.gradient[i] * gradient_scale;
    const float m = x.exp_avg[i] + (g - x.exp_avg[i]) * by.rate1;
    const float v = x.exp_avg_sq[i] * by.beta2 + g * g * by.rate2;
    const float change = by.step_size * m / (sqrtf(v) * by.inverse_root + by.eps);
    x.weight[i] = x.weight[i] * decay - change;
    x.exp_avg[i] = m;
    x.exp_avg_sq[i] = v;
    if (by.zeroes_gradient) x.gradient[i] = 0;
  }
}

/// Updates pack `pack` of N elements of what begins at `tensor`'s pointers.
template <class T, int N>
__device__ void update_pack(const AdamWTensor<T>& tensor, int pack, const AdamW<T>& by,
                            float gradient_scale) {
  Elements<N> x;
  load_floats(x.weight, tensor.weights, pack);
  load_floats(x.gradient, tensor.gradient, pack);
  load_floats(x.exp_avg, tensor.exp_avg, pack);
  load_floats(x.exp_avg_sq, tensor.exp_avg_sq, pack);
  update(x, by, gradient_scale, tensor.decay);
  store_floats(tensor.weights, pack, x.weight);
  store_floats(tensor.exp_avg, pack, x.exp_avg);
  store_floats(tensor.exp_avg_sq, pack, x.exp_avg_sq);
  if (by.zeroes_gradient) store_floats(tensor.gradient, pack, x.gradient);
  if constexpr (!std::is_same_v<T, float>) {
    Pack<T, N> rounded;
#pragma unroll
    for (int i = 0; i < N; ++i) rounded.at[i] = static_cast<T>(x.weight[i]);
    as_packs<N>(tensor.rounded)[pack] = rounded;
  }
}

/// Returns the part of the tensor from element `begin` on.
template <class T>
__device__ AdamWTensor<T> part_of(const AdamWTensor<T>& x, int64_t begin) {
  T* const rounded = std::is_same_v<T, float> ? nullptr : global(x.rounded) + begin;
  return {global(x.weights) + begin,
          global(x.gradient) + begin,
          global(x.exp_avg) + begin,
          global(x.exp_avg_sq) + begin,
          rounded,
          x.n - begin,
          x.decay};
}

template <class T>
__device__ bool is_aligned_tensor(const AdamWTensor<T>& x) {
  uintptr_t all = reinterpret_cast<uintptr_t>(x.weights) | reinterpret_cast<uintptr_t>(x.gradient) |
                  reinterpret_cast<uintptr_t>(x.exp_avg) | reinterpret_cast<uintptr_t>(x.exp_avg_sq);
  if constexpr (!std::is_same_v<T, float>) all |= reinterpret_cast<uintptr_t>(x.rounded);
  return all % 16 == 0;
}

template <class T>
__global__ void __launch_bounds__(kChunkThreads) adamw_chunks(const AdamW<T> by) {
  constexpr int kPack = 16 / sizeof(T);
  const Chunk chunk = chunk_of_block(by.chunks);
  const AdamWTensor<T> tensor = part_of(by.tensors[chunk.tensor], chunk.begin);
  const float gradient_scale = by.gradient_scale == nullptr ? 1.0f : *by.gradient_scale;
  if (gradient_scale != gradient_scale) return;  // NaN
  const int n = tensor.n < kChunkElements ? static_cast<int>(tensor.n) : kChunkElements;
  const int packs = is_aligned_tensor(tensor) ? n / kPack : 0;
  for (int pack = threadIdx.x; pack < packs; pack += kChunkThreads)
    update_pack<T, kPack>(tensor, pack, by, gradient_scale);
#pragma unroll 1
  for (int i = packs * kPack + threadIdx.x; i < n; i += kChunkThreads)
    update_pack<T, 1>(tensor, i, by, gradient_scale);
}

}  // namespace

template <class T>
void adamw(const AdamW<T>& step, cudaStream_t stream) {
  if (step.chunks.count == 0) return;
  launch(adamw_chunks<T>, static_cast<unsigned>(step.chunks.count), kChunkThreads, stream, step);
}
template void adamw(const AdamW<float>&, cudaStream_t);
template void adamw(const AdamW<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

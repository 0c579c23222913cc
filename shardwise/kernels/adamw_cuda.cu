#include "shardwise/kernels/adamw_cuda.h"

#include <type_traits>

#include "shardwise/kernels/chunk_cuda.h"
#include "shardwise/kernels/row_cuda.h"

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

template <int N>
__device__ void copy(float (&to)[N], const float* from) {
  constexpr int kPack = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kPack)
    *reinterpret_cast<Pack<float, kPack>*>(to + i) = *reinterpret_cast<const Pack<float, kPack>*>(from + i);
}
template <int N>
__device__ void copy(float* to, const float (&from)[N]) {
  constexpr int kPack = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kPack)
    *reinterpret_cast<Pack<float, kPack>*>(to + i) = *reinterpret_cast<const Pack<float, kPack>*>(from + i);
}

/// Updates N elements from element `at` on.
template <class T, int N>
__device__ void update_at(const AdamWTensor<T>& tensor, int64_t at, const AdamW<T>& by,
                          float gradient_scale) {
  Elements<N> x;
  copy(x.weight, tensor.weights + at);
  copy(x.gradient, tensor.gradient + at);
  copy(x.exp_avg, tensor.exp_avg + at);
  copy(x.exp_avg_sq, tensor.exp_avg_sq + at);
  update(x, by, gradient_scale, tensor.decay);
  copy(tensor.weights + at, x.weight);
  copy(tensor.exp_avg + at, x.exp_avg);
  copy(tensor.exp_avg_sq + at, x.exp_avg_sq);
  if (by.zeroes_gradient) copy(tensor.gradient + at, x.gradient);
  if constexpr (!std::is_same_v<T, float>) {
    Pack<T, N> rounded;
#pragma unroll
    for (int i = 0; i < N; ++i) rounded.at[i] = static_cast<T>(x.weight[i]);
    *reinterpret_cast<Pack<T, N>*>(tensor.rounded + at) = rounded;
  }
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
  AdamWTensor<T> tensor = by.tensors[chunk.tensor];
  tensor = {global(tensor.weights),
            global(tensor.gradient),
            global(tensor.exp_avg),
            global(tensor.exp_avg_sq),
            global(tensor.rounded),
            tensor.n,
            tensor.decay};
  const float gradient_scale = by.gradient_scale == nullptr ? 1.0f : *by.gradient_scale;
  const int n = elements_of(chunk, tensor.n), packs = is_aligned_tensor(tensor) ? n / kPack : 0;
  for (int pack = threadIdx.x; pack < packs; pack += kChunkThreads)
    update_at<T, kPack>(tensor, chunk.begin + pack * kPack, by, gradient_scale);
#pragma unroll 1
  for (int i = packs * kPack + threadIdx.x; i < n; i += kChunkThreads)
    update_at<T, 1>(tensor, chunk.begin + i, by, gradient_scale);
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

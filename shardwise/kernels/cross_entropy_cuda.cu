#include "shardwise/kernels/cross_entropy_cuda.h"

#include "shardwise/kernels/row_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Calls visit.template operator()<N>(column) for the packs of N elements that the thread has of a row, and
/// with N = 1 for those before the first aligned pack and after the last.
template <class T, class Visit>
__device__ void for_each_pack(const T* row, int v, Visit visit) {
  constexpr int N = 16 / sizeof(T);
  const int unaligned = static_cast<int>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
  const int head = unaligned < v ? unaligned : v, packs = (v - head) / N;
  if (static_cast<int>(threadIdx.x) < head) visit.template operator()<1>(threadIdx.x);
  for (int pack = threadIdx.x; pack < packs; pack += kThreads) visit.template operator()<N>(head + pack * N);
  if (const int column = head + packs * N + threadIdx.x; column < v) visit.template operator()<1>(column);
}

/// Largest logit, and sums relative to it, of the logits seen so far.
struct RunningTerms {
  float max = -INFINITY, exp_sum = 0, shifted = 0;
  int count = 0;

  /// Makes `to`, which is at least `max` and finite, the origin.
  __device__ void move_origin(float to) {
    if (count == 0) return;
    exp_sum *= expf(max - to);
    shifted = fmaf(static_cast<float>(count), max - to, shifted);
  }
  template <int N>
  __device__ void add(const float (&x)[N]) {
    float largest = max;
#pragma unroll
    for (int i = 0; i < N; ++i) largest = fmaxf(largest, x[i]);
    if (largest > max) {
      move_origin(largest);
      max = largest;
    }
    count += N;
    if (max == -INFINITY) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      exp_sum += expf(x[i] - max);
      shifted += x[i] - max;
    }
  }
};

__device__ float warp_max(float x) {
  for (int bit = 16; bit > 0; bit /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bit));
  return x;
}

__device__ float block_max(float x) {
  struct Maxima {
    float of_warp[32];
  };
  auto& shared = block_shared<Maxima>();
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_max(threadIdx.x % 32 < kThreads / 32 ? shared.of_warp[threadIdx.x % 32] : -INFINITY);
}

/// Sums relative to 0, for rows whose largest logit is infinite.
template <class T>
__device__ void add_without_origin(RunningTerms& terms, const T* row, int v) {
  terms.exp_sum = terms.shifted = 0;
  for (int i = threadIdx.x; i < v; i += kThreads) {
    terms.exp_sum += expf(static_cast<float>(row[i]));
    terms.shifted += static_cast<float>(row[i]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) loss_terms_rows(float* out, int terms, const Logits<T> all) {
  const int64_t row = blockIdx.x;
  const T* const logits = all.logits + row * all.v;
  RunningTerms own;
  for_each_pack(logits, all.v, [&]<int N>(int column) {
    const auto pack = *reinterpret_cast<const Pack<T, N>*>(logits + column);
    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = static_cast<float>(pack.at[i]);
    own.add(x);
  });
  const float max = block_max(own.max);
  fabsf(max) == INFINITY ? add_without_origin(own, logits, all.v) : own.move_origin(max);
  const float exp_sum = block_sum(own.exp_sum, /*turn=*/0), shifted = block_sum(own.shifted, /*turn=*/1);
  if (threadIdx.x != 0) return;
  const int64_t target = all.labels[row] - all.begin;
  out[row] = max;
  out[all.n + row] = exp_sum;
  out[2 * all.n + row] = target >= 0 && target < all.v ? static_cast<float>(logits[target]) : 0.0f;
  if (terms == 4) out[3 * all.n + row] = shifted;
}

__global__ void __launch_bounds__(kThreads)
    log_sum_tokens(float* out, const float* terms, int shards, int64_t stride, int64_t n) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= n) return;
  const float* const maxima = terms + token;
  float max = maxima[0], sum = 0;
  for (int i = 1; i < shards; ++i) max = fmaxf(max, maxima[i * stride]);
  for (int i = 0; i < shards; ++i) sum = fmaf(expf(maxima[i * stride] - max), maxima[i * stride + n], sum);
  out[token] = logf(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_rows(const CrossEntropyBackward<T> by) {
  const int64_t row = blockIdx.x, label = by.labels[row], target = label - by.begin;
  T* const logits = by.logits + row * by.v;
  const float lse = by.lse[row], probability = fmaf(2 * by.z_loss, lse, 1.0f);
  const bool is_ignored = label == by.ignore_index;
  for_each_pack(logits, by.v, [&]<int N>(int column) {
    auto pack = *reinterpret_cast<const Pack<T, N>*>(logits + column);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float of_class = fmaf(expf(static_cast<float>(pack.at[i]) - lse), probability, -by.class_weight);
      const float of_label = column + i == target ? by.label_weight : 0.0f;
      pack.at[i] = static_cast<T>(is_ignored ? 0.0f : (of_class - of_label) * by.scale);
    }
    *reinterpret_cast<Pack<T, N>*>(logits + column) = pack;
  });
}

}  // namespace

template <class T>
void loss_terms(float* out, int terms, const Logits<T>& logits, cudaStream_t stream) {
  if (logits.n > 0)
    launch(loss_terms_rows<T>, static_cast<unsigned>(logits.n), kThreads, stream, out, terms, logits);
}
template void loss_terms(float*, int, const Logits<float>&, cudaStream_t);
template void loss_terms(float*, int, const Logits<__nv_bfloat16>&, cudaStream_t);

void log_sums(float* out, const float* terms, int shards, int terms_of_shard, int64_t n,
              cudaStream_t stream) {
  if (n > 0)
    launch(log_sum_tokens, static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, stream, out, terms,
           shards, terms_of_shard * n, n);
}

template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& backward, cudaStream_t stream) {
  if (backward.n > 0 && backward.v > 0)
    launch(cross_entropy_backward_rows<T>, static_cast<unsigned>(backward.n), kThreads, stream, backward);
}
template void cross_entropy_backward(const CrossEntropyBackward<float>&, cudaStream_t);
template void cross_entropy_backward(const CrossEntropyBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

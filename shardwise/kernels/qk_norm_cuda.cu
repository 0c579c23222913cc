#include "shardwise/kernels/qk_norm_cuda.h"

#include <algorithm>
#include <bit>

#include "shardwise/kernels/partial_sums_cuda.h"
#include "shardwise/kernels/row_cuda.h"
#include "shardwise/kernels/row_launch_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// Threads of a block of heads in packs: each warp has 32 / lanes heads at a time. And of one of any heads.
constexpr int kHeadThreads = 128, kAnyHeadThreads = 32;

/// blockIdx.y chooses q, k or v.
template <class X>
__device__ X of_block(X q, X k, X v) {
  return blockIdx.y == 0 ? q : blockIdx.y == 1 ? k : v;
}
template <class T>
__device__ Heads<T> of_block(const Heads<T>& q, const Heads<T>& k, const Heads<T>& v) {
  return {of_block(q.data, k.data, v.data), of_block(q.batch, k.batch, v.batch),
          of_block(q.head, k.head, v.head), of_block(q.row, k.row, v.row)};
}

/// The block's heads in qkv, of which the first is number `first` in a token.
struct Part {
  int first, heads;

  __device__ explicit Part(const HeadSplit& split)
      : first(of_block(0, split.heads, split.heads + split.kv_heads)),
        heads(of_block(split.heads, split.kv_heads, split.kv_heads)) {}
};

/// Calls visit(place, is_there) for the heads of the block. `lanes` threads have a head, and all threads of
/// the block call visit equally often, so that they can sum.
template <class Visit>
__device__ void for_each_head(const HeadSplit& split, int heads, int lanes, const Visit& visit) {
  const unsigned count = static_cast<unsigned>(split.s * split.b * heads), together = blockDim.x / lanes;
  for (unsigned first = blockIdx.x * together; first < count; first += gridDim.x * together) {
    const unsigned n = first + threadIdx.x / lanes;
    visit(head_place(n, heads, split.b), n < count);
  }
}

__device__ float sum_of_lanes(float x, int lanes) {
  for (int bit = lanes / 2; bit > 0; bit /= 2) x += __shfl_xor_sync(~0u, x, bit);
  return x;
}

template <int N>
__device__ void load_floats(float (&to)[N], const float* from) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const auto four = *reinterpret_cast<const Pack<float, 4>*>(from + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[i + j] = four.at[j];
  }
}

/// A thread's two packs of a head.
template <class T, int N>
struct HeadPacks {
  Pack<T, N> first = {}, second = {};

  __device__ void load(const T* head, const PackPair& own, int packs) {
    const auto* const from = reinterpret_cast<const Pack<T, N>*>(head);
    if (own.first < packs) first = from[own.first];
    if (own.second < packs) second = from[own.second];
  }
  __device__ void store(T* head, const PackPair& own, int packs) const {
    auto* const to = reinterpret_cast<Pack<T, N>*>(head);
    if (own.first < packs) to[own.first] = first;
    if (own.second < packs) to[own.second] = second;
  }
  __device__ RotatedPair at(int i) const {
    return {static_cast<float>(first.at[i]), static_cast<float>(second.at[i])};
  }
  __device__ void set(int i, const RotatedPair& pair) {
    first.at[i] = static_cast<T>(pair.first);
    second.at[i] = static_cast<T>(pair.second);
  }
};

/// The angles of a thread's pairs.
template <int N>
struct PairAngles {
  float cos[N] = {}, sin[N] = {};

  __device__ void load(const HeadSplit& split, const HeadPlace& at, const PackPair& own) {
    const int64_t from = angles_of(split, at) + own.first * N;
    load_floats(cos, split.cos + from);
    load_floats(sin, split.sin + from);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kHeadThreads) qk_norm_heads(QkNorm<T> norm, int lanes) {
  const HeadSplit& split = norm.split;
  const Part part(split);
  const PackPair own = packs_of_thread(threadIdx.x % lanes, split.half / N);
  const int packs = split.head_dim / N;
  const float inverse_d = 1.0f / static_cast<float>(split.head_dim);
  const T* const weight = of_block<const T*>(norm.q_weight, norm.k_weight, nullptr);
  const Heads<T> heads = of_block(norm.q, norm.k, norm.v);
  HeadPacks<T, N> weights;
  if (weight != nullptr) weights.load(weight, own, packs);
  for_each_head(split, part.heads, lanes, [&](const HeadPlace& at, bool is_there) {
    HeadPacks<T, N> xs;
    PairAngles<N> angles;
    if (is_there) xs.load(head_in(norm.qkv, split, part.first, at), own, packs);
    if (weight != nullptr) {
      if (is_there && own.is_rotated) angles.load(split, at, own);
      float squares = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const auto [first, second] = xs.at(i);
        squares = fmaf(second, second, fmaf(first, first, squares));
      }
      const float rstd = 1.0f / sqrtf(fmaf(sum_of_lanes(squares, lanes), inverse_d, norm.eps));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const RotatedPair x = xs.at(i), w = weights.at(i);
        const RotatedPair y{x.first * rstd * w.first, x.second * rstd * w.second};
        xs.set(i, own.is_rotated ? rotated(y.first, y.second, angles.cos[i], angles.sin[i]) : y);
      }
    }
    if (is_there) xs.store(head_in(heads, at), own, packs);
  });
}

/// Stores the block's sums of the elements of heads: adds those of a warp's heads, then those of the warps.
template <int N>
__device__ void store_head_sums(float* sums, float (&of_first)[N], float (&of_second)[N], const PackPair& own,
                                int packs, int lanes) {
  constexpr int kWarps = kHeadThreads / 32;
  struct Sums {
    float of[kWarps][2 * N][32];
  };
  auto& shared = block_shared<Sums>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    for (int bit = lanes; bit < 32; bit *= 2) {
      of_first[i] += __shfl_xor_sync(~0u, of_first[i], bit);
      of_second[i] += __shfl_xor_sync(~0u, of_second[i], bit);
    }
    shared.of[warp][i][lane] = of_first[i];
    shared.of[warp][N + i][lane] = of_second[i];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= lanes) return;
#pragma unroll
  for (int i = 0; i < 2 * N; i += 4) {
    Pack<float, 4> four = {};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      for (int w = 0; w < kWarps; ++w) four.at[j] += shared.of[w][i + j][lane];
    const int pack = i < N ? own.first : own.second;
    if (pack < packs) *reinterpret_cast<Pack<float, 4>*>(sums + pack * N + i % N) = four;
  }
}

/// The memory of the blocks' sums [blocks, d]; null: not wanted.
struct PartialGrads {
  float *q, *k;
};

template <class T, int N>
__global__ void __launch_bounds__(kHeadThreads)
    qk_norm_backward_heads(QkNormBackward<T> norm, PartialGrads partial, int lanes) {
  const HeadSplit& split = norm.split;
  const Part part(split);
  const PackPair own = packs_of_thread(threadIdx.x % lanes, split.half / N);
  const int packs = split.head_dim / N;
  const float inverse_d = 1.0f / static_cast<float>(split.head_dim);
  const T* const weight = of_block<const T*>(norm.q_weight, norm.k_weight, nullptr);
  const Heads<const T> heads = of_block(norm.dq, norm.dk, norm.dv);
  float of_first[N] = {}, of_second[N] = {};  // sums of the weight's gradient
  HeadPacks<T, N> weights;
  if (weight != nullptr) weights.load(weight, own, packs);
  for_each_head(split, part.heads, lanes, [&](const HeadPlace& at, bool is_there) {
    HeadPacks<T, N> xs, dys;
    PairAngles<N> angles;
    if (is_there) dys.load(head_in(heads, at), own, packs);
    if (weight != nullptr) {
      if (is_there) xs.load(head_in(norm.qkv, split, part.first, at), own, packs);
      if (is_there && own.is_rotated) angles.load(split, at, own);
      const auto dy_at = [&](int i) {
        const RotatedPair dy = dys.at(i);
        return own.is_rotated ? rotated(dy.first, dy.second, angles.cos[i], -angles.sin[i]) : dy;
      };
      float squares = 0, dot = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const RotatedPair x = xs.at(i), w = weights.at(i), dy = dy_at(i);
        squares = fmaf(x.second, x.second, fmaf(x.first, x.first, squares));
        dot = fmaf(dy.second * w.second, x.second, fmaf(dy.first * w.first, x.first, dot));
      }
      const float rstd = 1.0f / sqrtf(fmaf(sum_of_lanes(squares, lanes), inverse_d, norm.eps));
      const float along = rstd * rstd * sum_of_lanes(dot, lanes) * inverse_d;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const RotatedPair x = xs.at(i), w = weights.at(i), dy = dy_at(i);
        if (is_there) {
          of_first[i] = fmaf(dy.first, x.first * rstd, of_first[i]);
          of_second[i] = fmaf(dy.second, x.second * rstd, of_second[i]);
        }
        dys.set(i, {rstd * fmaf(x.first, -along, dy.first * w.first),
                    rstd * fmaf(x.second, -along, dy.second * w.second)});
      }
    }
    if (is_there) dys.store(head_in(norm.d_qkv, split, part.first, at), own, packs);
  });
  float* const sums = of_block<float*>(partial.q, partial.k, nullptr);
  if (sums != nullptr)
    store_head_sums(sums + int64_t{blockIdx.x} * split.head_dim, of_first, of_second, own, packs, lanes);
}

/// Heads that packs do not fit: a warp has one at a time, and reads it twice.
template <class T>
__global__ void __launch_bounds__(kAnyHeadThreads) qk_norm_any_heads(QkNorm<T> norm) {
  const HeadSplit& split = norm.split;
  const Part part(split);
  const int d = split.head_dim, half = split.half, lane = threadIdx.x;
  const T* const weight = of_block<const T*>(norm.q_weight, norm.k_weight, nullptr);
  const Heads<T> heads = of_block(norm.q, norm.k, norm.v);
  for_each_head(split, part.heads, kAnyHeadThreads, [&](const HeadPlace& at, bool) {
    const T* const x = head_in(norm.qkv, split, part.first, at);
    T* const y = head_in(heads, at);
    if (weight == nullptr) {
      for (int i = lane; i < d; i += kAnyHeadThreads) y[i] = x[i];
      return;
    }
    float squares = 0;
    for (int i = lane; i < d; i += kAnyHeadThreads)
      squares = fmaf(static_cast<float>(x[i]), static_cast<float>(x[i]), squares);
    const float rstd = 1.0f / sqrtf(fmaf(warp_sum(squares), 1.0f / static_cast<float>(d), norm.eps));
    const auto normalized = [&](int i) {
      return static_cast<float>(x[i]) * rstd * static_cast<float>(weight[i]);
    };
    const int64_t angles = angles_of(split, at);
    for (int i = lane; i < half; i += kAnyHeadThreads) {
      const auto [first, second] =
          rotated(normalized(i), normalized(i + half), split.cos[angles + i], split.sin[angles + i]);
      y[i] = static_cast<T>(first);
      y[i + half] = static_cast<T>(second);
    }
    for (int i = 2 * half + lane; i < d; i += kAnyHeadThreads) y[i] = static_cast<T>(normalized(i));
  });
}

/// As above; a thread keeps its sums in the partial sums' memory.
template <class T>
__global__ void __launch_bounds__(kAnyHeadThreads)
    qk_norm_backward_any_heads(QkNormBackward<T> norm, PartialGrads partial) {
  const HeadSplit& split = norm.split;
  const Part part(split);
  const int d = split.head_dim, half = split.half, lane = threadIdx.x;
  const T* const weight = of_block<const T*>(norm.q_weight, norm.k_weight, nullptr);
  const Heads<const T> heads = of_block(norm.dq, norm.dk, norm.dv);
  float* sums = of_block<float*>(partial.q, partial.k, nullptr);
  if (sums != nullptr) sums += int64_t{blockIdx.x} * d;
  // Calls visit(i, dy of the head before its rotation) for the thread's elements, which are always the same.
  const auto for_each_dy = [&](const T* dy, int64_t angles, const auto& visit) {
    for (int i = lane; i < half; i += kAnyHeadThreads) {
      const auto [first, second] = rotated(static_cast<float>(dy[i]), static_cast<float>(dy[i + half]),
                                           split.cos[angles + i], -split.sin[angles + i]);
      visit(i, first);
      visit(i + half, second);
    }
    for (int i = 2 * half + lane; i < d; i += kAnyHeadThreads) visit(i, static_cast<float>(dy[i]));
  };
  if (sums != nullptr) for_each_dy(weight, 0, [&](int i, float) { sums[i] = 0; });
  for_each_head(split, part.heads, kAnyHeadThreads, [&](const HeadPlace& at, bool) {
    const T *const dy = head_in(heads, at), *const x = head_in(norm.qkv, split, part.first, at);
    T* const dx = head_in(norm.d_qkv, split, part.first, at);
    if (weight == nullptr) {
      for (int i = lane; i < d; i += kAnyHeadThreads) dx[i] = dy[i];
      return;
    }
    const int64_t angles = angles_of(split, at);
    float squares = 0, dot = 0;
    for_each_dy(dy, angles, [&](int i, float of_y) {
      const float of_x = static_cast<float>(x[i]);
      squares = fmaf(of_x, of_x, squares);
      dot = fmaf(of_y * static_cast<float>(weight[i]), of_x, dot);
    });
    const float inverse_d = 1.0f / static_cast<float>(d);
    const float rstd = 1.0f / sqrtf(fmaf(warp_sum(squares), inverse_d, norm.eps));
    const float along = rstd * rstd * warp_sum(dot) * inverse_d;
    for_each_dy(dy, angles, [&](int i, float of_y) {
      const float of_x = static_cast<float>(x[i]);
      if (sums != nullptr) sums[i] = fmaf(of_y, of_x * rstd, sums[i]);
      dx[i] = static_cast<T>(rstd * fmaf(of_x, -along, of_y * static_cast<float>(weight[i])));
    });
  });
}

template <class T>
bool has_whole_packs(const Heads<T>& heads) {
  constexpr int kPack = 16 / sizeof(T);
  return is_aligned(heads.data) && heads.batch % kPack == 0 && heads.head % kPack == 0 &&
         heads.row % kPack == 0;
}

/// Calls run(lanes) with the threads that hold a head in packs, or otherwise() if none do.
template <class T, class Run, class Otherwise>
void with_lanes(const HeadSplit& split, bool are_aligned, const Run& run, const Otherwise& otherwise) {
  constexpr int kPack = 16 / sizeof(T);
  const int packs = split.head_dim / kPack;
  if (!are_aligned || !is_aligned(split.cos) || !is_aligned(split.sin) || split.head_dim % kPack != 0 ||
      split.half % kPack != 0 || packs > 64)
    return otherwise();
  run(std::bit_ceil(static_cast<unsigned>(packs + 1) / 2));
}

/// Returns the blocks of which each has `together` heads at a time.
unsigned blocks_of(const HeadSplit& split, int most, int together) {
  const int64_t heads = split.s * split.b * std::max(split.heads, split.kv_heads);
  return static_cast<unsigned>(std::min<int64_t>(most, (heads + together - 1) / together));
}

}  // namespace

template <class T>
void qk_norm(const QkNorm<T>& n, cudaStream_t stream) {
  if (n.split.s == 0 || n.split.b == 0) return;
  const unsigned parts = n.v.data == nullptr ? 2 : 3;
  with_lanes<T>(
      n.split,
      has_whole_packs(n.q) && has_whole_packs(n.k) && has_whole_packs(n.v) && is_aligned(n.qkv) &&
          is_aligned(n.q_weight) && is_aligned(n.k_weight),
      [&](int lanes) {
        const unsigned blocks = blocks_of(n.split, n.blocks, kHeadThreads / lanes);
        launch(qk_norm_heads<T, 16 / sizeof(T)>, dim3(blocks, parts), kHeadThreads, stream, n, lanes);
      },
      [&] {
        launch(qk_norm_any_heads<T>, dim3(blocks_of(n.split, n.blocks, 1), parts), kAnyHeadThreads, stream,
               n);
      });
}
template void qk_norm(const QkNorm<float>&, cudaStream_t);
template void qk_norm(const QkNorm<__nv_bfloat16>&, cudaStream_t);
template void qk_norm(const QkNorm<__half>&, cudaStream_t);

template <class T>
void qk_norm_backward(const QkNormBackward<T>& n, cudaStream_t stream) {
  const int d = n.split.head_dim;
  if (n.split.s == 0 || n.split.b == 0) return;
  const PartialGrads partial{n.q_weight_grad ? n.partial : nullptr,
                             n.k_weight_grad ? n.partial + int64_t{n.blocks} * d : nullptr};
  unsigned blocks = 0;
  with_lanes<T>(
      n.split,
      has_whole_packs(n.dq) && has_whole_packs(n.dk) && has_whole_packs(n.dv) && is_aligned(n.d_qkv) &&
          is_aligned(n.qkv) && is_aligned(n.q_weight) && is_aligned(n.k_weight) && is_aligned(n.partial),
      [&](int lanes) {
        blocks = blocks_of(n.split, n.blocks, kHeadThreads / lanes);
        launch(qk_norm_backward_heads<T, 16 / sizeof(T)>, dim3(blocks, 3), kHeadThreads, stream, n, partial,
               lanes);
      },
      [&] {
        blocks = blocks_of(n.split, n.blocks, 1);
        launch(qk_norm_backward_any_heads<T>, dim3(blocks, 3), kAnyHeadThreads, stream, n, partial);
      });
  const auto add = [&](float* grad, const float* sums) {
    if (sums != nullptr) add_partial_sums(grad, sums, static_cast<int>(blocks), d, stream);
  };
  add(n.q_weight_grad, partial.q);
  add(n.k_weight_grad, partial.k);
}
template void qk_norm_backward(const QkNormBackward<float>&, cudaStream_t);
template void qk_norm_backward(const QkNormBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

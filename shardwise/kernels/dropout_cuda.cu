#include "shardwise/kernels/dropout_cuda.h"

#include <cmath>

#include "shardwise/base/philox.h"
#include "shardwise/kernels/dropout_rule.h"
#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

// Element 32g + 16h + 2l + w has word 2h + w of block 8g + l (dropout_isa.h): a thread has N elements of both
// halves of a group, which use all words of N/2 blocks.
constexpr int kGroup = kDropoutGroup, kHalf = kGroup / 2;

/// An element is kept if its word is at least `least_kept`, of 32 bits or 2^32.
struct Mask {
  uint64_t key, least_kept;
  float scale;
};

template <class T>
struct Terms {
  const T *x, *bias, *residual;
};

/// N elements of each term.
template <class T, int N, bool kAlone>
struct TermPacks {
  Pack<T, N> x, bias, residual;

  /// Loads pack `at` of all, whose row's pack is `of_row`. A bias of −0 changes no sum.
  __device__ void load(const Terms<T>& terms, int64_t at, int64_t of_row) {
    x = as_packs<N>(terms.x)[at];
    if constexpr (kAlone) return;
    residual = as_packs<N>(terms.residual)[at];
#pragma unroll
    for (int i = 0; i < N; ++i) bias.at[i] = static_cast<T>(-0.0f);
    if (terms.bias != nullptr) bias = as_packs<N>(terms.bias)[of_row];
  }
  __device__ static T sum(T a, T b) {
    return static_cast<T>(static_cast<float>(a) + static_cast<float>(b));
  }
  __device__ Pack<T, N> result(const uint32_t (&words)[N], const Mask& mask) const {
    Pack<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = static_cast<float>(kAlone ? x.at[i] : sum(x.at[i], bias.at[i])) * mask.scale;
      const T masked = static_cast<T>(words[i] >= mask.least_kept ? scaled : 0.0f);
      y.at[i] = kAlone ? masked : sum(residual.at[i], masked);
    }
    return y;
  }
};

/// Packs of rows that begin with a group and end with one.
template <class T, int N, bool kAlone>
__global__ void __launch_bounds__(kPackThreads)
    dropout_packs(T* y, Terms<T> terms, int64_t h, uint64_t first, Mask mask, unsigned parts) {
  constexpr int kPacks = kHalf / N;  // of half a group
  const auto [row, thread] = pack_place(parts);
  const int64_t group = thread / kPacks, pack = group * 2 * kPacks + thread % kPacks;
  if (pack >= h / N) return;
  const uint64_t block = (first + row * h) / 4 + group * (kGroup / 4) + thread % kPacks * (N / 2);
  TermPacks<T, N, kAlone> halves[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    halves[half].load(terms, row * (h / N) + pack + half * kPacks, pack + half * kPacks);
  uint32_t words[2][N];
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const auto drawn = base::philox(block + i / 2, base::PhiloxUse::elements, mask.key);
    words[0][i] = drawn.word[0], words[0][i + 1] = drawn.word[1];
    words[1][i] = drawn.word[2], words[1][i + 1] = drawn.word[3];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    as_packs<N>(y)[row * (h / N) + pack + half * kPacks] = halves[half].result(words[half], mask);
}

/// Any rows; a thread has the elements of one block, some of which may be outside the row.
template <class T, bool kAlone>
__global__ void __launch_bounds__(kPackThreads)
    dropout_any_rows(T* y, Terms<T> terms, int64_t h, uint64_t first, Mask mask, unsigned parts) {
  const auto [row, thread] = pack_place(parts);
  const uint64_t begin = first + row * h;
  const uint64_t block = begin / kGroup * (kGroup / 4) + thread;
  const auto drawn = base::philox(block, base::PhiloxUse::elements, mask.key);
  const uint64_t element = block / (kGroup / 4) * kGroup + block % (kGroup / 4) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto column = static_cast<int64_t>(element + i / 2 * kHalf + i % 2 - begin);
    if (column < 0 || column >= h) continue;
    TermPacks<T, 1, kAlone> one;
    one.load(terms, row * h + column, column);
    y[row * h + column] = one.result({drawn.word[i]}, mask).at[0];
  }
}

/// As mask_of (dropout_mask.h). p = 1 keeps nothing.
Mask mask_of(double p, uint64_t key) {
  if (p == 1) return {key, uint64_t{1} << 32, 0};
  return {key, dropout_threshold(p), static_cast<float>(1 / (1 - p))};
}

template <class T, bool kAlone>
void launch_dropout(const Dropout<T>& d, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const Terms<T> terms = {d.x, d.bias, d.residual};
  const Mask mask = mask_of(d.p, d.key);
  const bool are_aligned = is_aligned(d.y) && is_aligned(d.x) && is_aligned(d.bias) && is_aligned(d.residual);
  if (are_aligned && d.h % kGroup == 0 && d.first_element % kGroup == 0) {
    launch_packs(dropout_packs<T, kPack, kAlone>, d.rows, d.h / (2 * kPack), stream, d.y, terms, d.h,
                 d.first_element, mask);
  } else {  // a row may begin and end within groups
    launch_packs(dropout_any_rows<T, kAlone>, d.rows, (d.h / kGroup + 2) * (kGroup / 4), stream, d.y, terms,
                 d.h, d.first_element, mask);
  }
}

}  // namespace

template <class T>
void dropout(const Dropout<T>& d, cudaStream_t stream) {
  if (d.rows == 0 || d.h == 0) return;
  if (d.residual != nullptr) return launch_dropout<T, /*kAlone=*/false>(d, stream);
  launch_dropout<T, /*kAlone=*/true>(d, stream);
}
template void dropout(const Dropout<float>&, cudaStream_t);
template void dropout(const Dropout<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

// A block's attention to consecutive keys of a KV head, for several query heads. For
// cached_attention_cuda.cu.
//
// `lanes` threads of a warp have a row, each with the same elements of queries, keys, values and sums. They
// share a row's scores; 32 / lanes such parts of a warp have different rows, and scores and sums of their own
// (online softmax), which are merged at the end. Scores are those of base 2: q · k · log2(e) / √d. Source:
// Milakov & Gimelshein 2018, algorithm 3.
#pragma once
#include <bit>

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {

inline constexpr int kAttendWarps = 4, kAttendThreads = 32 * kAttendWarps;

/// A lane has `packs` packs of `pack` elements of each of `rows` rows at once, for `heads` query heads.
/// Registers suffice for `blocks` blocks on a multiprocessor.
template <int pack, int packs, int heads, int rows, int blocks>
struct AttendTile {
  static constexpr int kPack = pack, kPacks = packs, kHeads = heads, kRows = rows, kBlocks = blocks;
  static constexpr int kElements = pack * packs;  // of a row
  static constexpr int kMostWidth = 32 * kElements;
};

/// The place of a thread in a row, and that of its row in the rows of the block.
struct LaneOfRow {
  int lanes, lane, row, rows;

  __device__ explicit LaneOfRow(int lanes)
      : lanes(lanes), lane(threadIdx.x % lanes), row(threadIdx.x % 32 / lanes), rows(32 / lanes) {}
};

/// Keys or values of a KV head; those of int8 have factors.
template <class S>
struct StoredRows {
  static constexpr bool kIsScaled = std::is_same_v<S, int8_t>;
  const S* data;
  const float* scales;

  /// The rows from `first` on.
  __device__ StoredRows(const S* all, const float* all_scales, int64_t first, int d)
      : data(global(all) + first * d), scales(kIsScaled ? global(all_scales) + first : nullptr) {}
};

/// A pack of N elements, which in words take fewer registers.
template <class S, int N>
using Packed = std::conditional_t<N == 1, Pack<S, 1>, Pack<unsigned, N * sizeof(S) / 4>>;

/// Returns element i of a pack.
template <class S, int N>
__device__ float widened(const Packed<S, N>& pack, int i) {
  if constexpr (N == 1) {
    return static_cast<float>(pack.at[0]);
  } else {
    constexpr int kOfWord = 4 / sizeof(S);
    const unsigned word = pack.at[i / kOfWord];
    if constexpr (std::is_same_v<S, float>) return std::bit_cast<float>(word);
    if constexpr (std::is_same_v<S, __nv_bfloat16>)
      return std::bit_cast<float>(i % 2 == 0 ? word << 16 : word & 0xffff0000);
    if constexpr (std::is_same_v<S, __half>)
      return static_cast<float>(std::bit_cast<__half>(static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16)));
    // Instructions that convert integers are slow: this puts them into the mantissa of 2^23.
    const unsigned byte = (word ^ 0x80808080u) >> 8 * (i % 4) & 0xff;
    return std::bit_cast<float>(0x4b000000u | byte) - (0x1p23f + 128);
  }
}

/// The thread's elements of its rows, which are `of.rows` apart. Those from `end` on are zero.
template <class Tile, class S>
struct LoadedRows {
  using Packs = Packed<S, Tile::kPack>;
  Packs packs[Tile::kRows][Tile::kPacks];
  float scales[Tile::kRows];  // of int8

  __device__ void load(const StoredRows<S>& from, int row, int end, int d, const LaneOfRow& of) {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r, row += of.rows) {
#pragma unroll
      for (int p = 0; p < Tile::kPacks; ++p) {
        const int pack = of.lane + p * of.lanes;
        packs[r][p] = {};
        if (row < end && pack * Tile::kPack < d)
          packs[r][p] = std::bit_cast<Packs>(as_packs<Tile::kPack>(from.data + int64_t{row} * d)[pack]);
      }
      if constexpr (StoredRows<S>::kIsScaled) scales[r] = row < end ? from.scales[row] : 0;
    }
  }
  __device__ float at(int r, int i) const {
    return widened<S, Tile::kPack>(packs[r][i / Tile::kPack], i % Tile::kPack);
  }
  /// Multiplies by the scale of the thread's row `r`.
  __device__ float scaled(float x, int r) const {
    if constexpr (StoredRows<S>::kIsScaled) return x * scales[r];
    return x;
  }
};

/// The query heads, and sums over the keys so far of the thread's part of the warp.
template <class Tile>
struct Attention {
  static constexpr int kHeads = Tile::kHeads, kRows = Tile::kRows, kElements = Tile::kElements;
  float q[kHeads][kElements];               // times the scale of scores
  float out[kHeads][kElements] = {};        // Σ probability · value
  float largest[kHeads], sum[kHeads] = {};  // score; Σ probability

  template <class T>
  __device__ void load(const T* heads, int64_t stride, int count, int d, float scale, const LaneOfRow& of) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      largest[h] = -INFINITY;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int at = (of.lane + i / Tile::kPack * of.lanes) * Tile::kPack + i % Tile::kPack;
        q[h][i] = h < count && at < d ? static_cast<float>(heads[h * stride + at]) * scale : 0.0f;
      }
    }
  }

  /// Adds `count` keys. The threads of a warp call it together.
  template <class S>
  __device__ void attend(const StoredRows<S>& keys, const StoredRows<S>& values, int count, int d,
                         const LaneOfRow& of) {
    const int of_warp = kRows * of.rows, warp = threadIdx.x / 32;
    LoadedRows<Tile, S> k, v;
    int first = warp * of_warp;
    k.load(keys, first + of.row, count, d, of);
    for (; first < count; first += kAttendWarps * of_warp) {
      v.load(values, first + of.row, count, d, of);
      float scores[kHeads][kRows];
      multiply(scores, k);
      k.load(keys, first + of.row + kAttendWarps * of_warp, count, d, of);  // ahead
      for (int bit = of.lanes / 2; bit > 0; bit /= 2) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
          for (int r = 0; r < kRows; ++r) scores[h][r] += __shfl_xor_sync(~0u, scores[h][r], bit);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + of.row + r * of.rows < count) continue;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) scores[h][r] = -INFINITY;
      }
      add(scores, v);
    }
  }
  /// Adds the sums of a warp's parts. Then all parts have them.
  __device__ void merge_parts(const LaneOfRow& of) {
    for (int bit = of.lanes; bit < 32; bit *= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float most = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], bit));
        if (most > largest[h]) move_origin(h, most);
        sum[h] += __shfl_xor_sync(~0u, sum[h], bit);
#pragma unroll
        for (int i = 0; i < kElements; ++i) out[h][i] += __shfl_xor_sync(~0u, out[h][i], bit);
      }
    }
  }

 private:
  /// Computes the thread's part of the products of its keys.
  template <class S>
  __device__ void multiply(float (&scores)[kHeads][kRows], const LoadedRows<Tile, S>& k) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) scores[h][r] = 0;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float x = k.at(r, i);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) scores[h][r] = fmaf(q[h][i], x, scores[h][r]);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) scores[h][r] = k.scaled(scores[h][r], r);
    }
  }

  /// Makes the score `to`, at least `largest`, the one that probabilities are relative to.
  __device__ void move_origin(int h, float to) {
    const float factor = exp2f(largest[h] - to);
    largest[h] = to;
    sum[h] *= factor;
#pragma unroll
    for (int i = 0; i < kElements; ++i) out[h][i] *= factor;
  }

  /// Adds rows of values, of which the absent have scores of −∞.
  template <class S>
  __device__ void add(float (&scores)[kHeads][kRows], const LoadedRows<Tile, S>& v) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float most = largest[h];
#pragma unroll
      for (int r = 0; r < kRows; ++r) most = fmaxf(most, scores[h][r]);
      if (most > largest[h]) move_origin(h, most);
      const float origin = most == -INFINITY ? 0.0f : most;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float probability = exp2f(scores[h][r] - origin);
        sum[h] += probability;
        scores[h][r] = v.scaled(probability, r);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float x = v.at(r, i);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) out[h][i] = fmaf(scores[h][r], x, out[h][i]);
      }
  }
};

/// Adds the sums of the block's warps, and calls visit(head, pack, sums, largest, sum) for each pack of four
/// elements of the first `heads` heads. May be called again.
template <class Tile, class Visit>
__device__ void merge_warps(const Attention<Tile>& of_warp, int heads, int d, const LaneOfRow& of,
                            const Visit& visit) {
  struct Shared {
    alignas(16) float out[kAttendWarps][Tile::kHeads][Tile::kMostWidth];
    float largest[kAttendWarps][Tile::kHeads], sum[kAttendWarps][Tile::kHeads];
  };
  auto& shared = block_shared<Shared>();
  const int warp = threadIdx.x / 32;
  __syncthreads();  // an earlier call's reads
  if (of.row == 0) {
#pragma unroll
    for (int h = 0; h < Tile::kHeads; ++h) {
#pragma unroll
      for (int p = 0; p < Tile::kPacks; ++p) {
        float part[Tile::kPack];
#pragma unroll
        for (int i = 0; i < Tile::kPack; ++i) part[i] = of_warp.out[h][p * Tile::kPack + i];
        store_floats(shared.out[warp][h], of.lane + p * of.lanes, part);
      }
      if (of.lane == 0) {
        shared.largest[warp][h] = of_warp.largest[h];
        shared.sum[warp][h] = of_warp.sum[h];
      }
    }
  }
  __syncthreads();
  const int packs = (d + 3) / 4;
  for (int i = threadIdx.x; i < heads * packs; i += kAttendThreads) {
    const int h = i / packs, pack = i % packs;
    float largest = shared.largest[0][h], sum = 0;
    for (int w = 1; w < kAttendWarps; ++w) largest = fmaxf(largest, shared.largest[w][h]);
    const float origin = largest == -INFINITY ? 0.0f : largest;
    Pack<float, 4> sums = {};
    for (int w = 0; w < kAttendWarps; ++w) {
      const float weight = exp2f(shared.largest[w][h] - origin);
      const auto part = as_packs<4>(shared.out[w][h])[pack];
      sum = fmaf(weight, shared.sum[w][h], sum);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.at[j] = fmaf(weight, part.at[j], sums.at[j]);
    }
    visit(h, pack, sums, largest, sum);
  }
}

}  // namespace shardwise::kernels::cuda

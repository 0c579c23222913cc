#include "shardwise/kernels/cached_attention_cuda.h"

#include <bit>
#include <cmath>

#include "shardwise/kernels/append_rows_cuda.h"
#include "shardwise/kernels/attended_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kCombineThreads = 256;

/// The keys that a sequence attends to, [begin, end).
struct KeyRange {
  int64_t begin, end;
};

template <class S>
__device__ KeyRange attended_keys(const CachedSequence<S>& sequence, int64_t window) {
  const int64_t end = sequence.length + 1;
  return {window > 0 && window < end ? end - window : 0, end};
}

/// Where a split's results are in the workspace, which has the rows of sums [n, a, splits, ⌈d⌉₄], and then
/// [n, a, splits, 2]: the largest score, and the sum of probabilities relative to it.
struct SplitResults {
  float *sums, *terms;

  template <class T, class S>
  __device__ SplitResults(const CachedAttention<T, S>& by, int64_t sequence, int head, int split) {
    const int64_t first = (sequence * by.heads + head) * by.splits.count + split;
    const int64_t all = int64_t{by.n} * by.heads * by.splits.count, stride = (by.head_dim + 3) / 4 * 4;
    sums = by.workspace + first * stride;
    terms = by.workspace + all * stride + first * 2;
  }
};

/// Stores a pack of four elements of a head's result, as far as the head has them.
template <class T>
__device__ void store_out(T* out, int pack, int d, const Pack<float, 4>& sums, float factor) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (const int at = 4 * pack + i; at < d) out[at] = static_cast<T>(sums.at[i] * factor);
}

/// A block attends to split blockIdx.x of those that the sequence blockIdx.z attends to, for the query heads
/// of KV head blockIdx.y.
template <class T, class S, class Tile>
__global__ void __launch_bounds__(kAttendThreads, Tile::kBlocks)
    attend_to_split(CachedAttention<T, S> by, int lanes, float scale) {
  const CachedSequence<S>& sequence = by.sequences[blockIdx.z];
  const KeyRange all = attended_keys(sequence, by.window);
  const int64_t split = all.begin / by.splits.rows + blockIdx.x, first_key = split * by.splits.rows;
  const int64_t end = all.end < first_key + by.splits.rows ? all.end : first_key + by.splits.rows;
  const int64_t begin = all.begin > first_key ? all.begin : first_key;
  if (begin >= end) return;  // nobody reads its results
  const int kv = blockIdx.y, d = by.head_dim, first = kv * by.group - by.first;
  const int last = first + by.group < by.heads ? first + by.group : by.heads;
  const int64_t first_row = kv * sequence.capacity + begin;
  const StoredRows<S> keys(sequence.keys, sequence.key_scales, first_row, d);
  const StoredRows<S> values(sequence.values, sequence.value_scales, first_row, d);
  const LaneOfRow of(lanes);
  for (int head = first < 0 ? 0 : first; head < last; head += Tile::kHeads) {
    const int heads = last - head < Tile::kHeads ? last - head : Tile::kHeads;
    Attention<Tile> attention;
    attention.load(by.q.data + blockIdx.z * by.q.batch + head * by.q.head, by.q.head, heads, d, scale, of);
    attention.attend(keys, values, static_cast<int>(end - begin), d, of);
    attention.merge_parts(of);
    merge_warps(attention, heads, d, of,
                [&](int h, int pack, const Pack<float, 4>& sums, float largest, float sum) {
                  if (by.splits.count == 1)
                    return store_out(by.out + (int64_t{blockIdx.z} * by.heads + head + h) * d, pack, d, sums,
                                     1 / sum);
                  const SplitResults to(by, blockIdx.z, head + h, blockIdx.x);
                  as_packs<4>(to.sums)[pack] = sums;
                  if (pack == 0) as_packs<2>(to.terms)[0] = {largest, sum};
                });
  }
}

/// Adds up the splits of head blockIdx.x of sequence blockIdx.y: `lanes` threads have a split's row of sums,
/// and 256 / lanes of them at once are added in order.
template <class T, class S>
__global__ void __launch_bounds__(kCombineThreads) combine_splits(CachedAttention<T, S> by, int lanes) {
  struct Shared {
    Pack<float, 4> sums[kCombineThreads];
    float sum[kCombineThreads / 32];
  };
  auto& shared = block_shared<Shared>();
  const KeyRange keys = attended_keys(by.sequences[blockIdx.y], by.window);
  const int splits = static_cast<int>((keys.end - 1) / by.splits.rows - keys.begin / by.splits.rows) + 1;
  const SplitResults from(by, blockIdx.y, blockIdx.x, 0);
  const auto* const terms = as_packs<2>(from.terms);
  float largest = -INFINITY;
  for (int i = threadIdx.x % 32; i < splits; i += 32) largest = fmaxf(largest, terms[i].at[0]);
  for (int bit = 16; bit > 0; bit /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
  const float origin = largest == -INFINITY ? 0.0f : largest;
  const int pack = threadIdx.x % lanes, part = threadIdx.x / lanes, parts = kCombineThreads / lanes;
  const int d = by.head_dim, packs = (d + 3) / 4;
  float sum = 0;
  Pack<float, 4> sums = {};
#pragma unroll 4
  for (int i = part; i < splits; i += parts) {
    const auto [score, of_split] = terms[i].at;
    const float weight = exp2f(score - origin);
    Pack<float, 4> row = {};
    if (pack < packs) row = as_packs<4>(from.sums)[i * packs + pack];
    sum = fmaf(weight, of_split, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums.at[j] = fmaf(weight, row.at[j], sums.at[j]);
  }
  shared.sums[threadIdx.x] = sums;
  if (pack == 0) shared.sum[part] = sum;
  __syncthreads();
  if (part != 0 || pack >= packs) return;
  for (int i = 1; i < parts; ++i) {
    sum += shared.sum[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) sums.at[j] += shared.sums[i * lanes + pack].at[j];
  }
  T* const out = by.out + (int64_t{blockIdx.y} * by.heads + blockIdx.x) * d;
  store_out(out, pack, d, sums, 1 / sum);
}

template <class Tile, class T, class S>
void attend(const CachedAttention<T, S>& by, cudaStream_t stream) {
  const int packs = by.head_dim / Tile::kPack;
  const int of_lane = Tile::kPack == 1 ? 1 : Tile::kPacks;  // single elements: as many lanes as there are
  const unsigned lanes = std::min(32u, std::bit_ceil(static_cast<unsigned>((packs + of_lane - 1) / of_lane)));
  const double scale = std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(by.head_dim));
  launch(attend_to_split<T, S, Tile>, dim3(by.splits.count, by.kv_heads, by.n), kAttendThreads, stream, by,
         static_cast<int>(lanes), static_cast<float>(scale));
}

/// Calls attend for a tile of whole packs that has the group's heads at once, if registers hold them, or of
/// single elements for heads that such packs do not fit.
template <class T, class S>
void attend_in_tiles(const CachedAttention<T, S>& by, cudaStream_t stream) {
  // A lane has 8 elements of a row: in a pack of 16 bytes, two of fp32, or 8 bytes of int8, of more rows.
  constexpr int kPack = sizeof(S) == 4 ? 4 : 8, kPacks = 8 / kPack;
  constexpr bool kIsInt8 = sizeof(S) == 1;
  using Elements = AttendTile</*pack=*/1, kMostHeadDim / 32, /*heads=*/1, /*rows=*/2, /*blocks=*/2>;
  using OneHead = AttendTile<kPack, kPacks, /*heads=*/1, /*rows=*/8 / kPacks, /*blocks=*/3>;
  using FourHeads =
      AttendTile<kPack, kPacks, /*heads=*/4, kIsInt8 ? 8 : 4, /*blocks=*/sizeof(S) == 2 ? 3 : 2>;
  using EightHeads = AttendTile<kPack, kPacks, /*heads=*/8, /*rows=*/4, /*blocks=*/2>;
  if (by.head_dim % kPack != 0 || by.head_dim > OneHead::kMostWidth) return attend<Elements>(by, stream);
  if (by.group == 1) return attend<OneHead>(by, stream);
  if constexpr (sizeof(S) == 2) {
    if (by.group > FourHeads::kHeads) return attend<EightHeads>(by, stream);
  }
  attend<FourHeads>(by, stream);
}

}  // namespace

template <class T, class S>
void cached_attention(const CachedAttention<T, S>& by, cudaStream_t stream) {
  if (by.n == 0 || by.kv_heads == 0) return;
  append_rows(by, stream);
  if (by.heads == 0) return;
  attend_in_tiles(by, stream);
  if (by.splits.count == 1) return;
  const unsigned packs = (static_cast<unsigned>(by.head_dim) + 3) / 4,
                 lanes = std::max(32u, std::bit_ceil(packs));
  launch(combine_splits<T, S>, dim3(by.heads, by.n), kCombineThreads, stream, by, static_cast<int>(lanes));
}
template void cached_attention(const CachedAttention<float>&, cudaStream_t);
template void cached_attention(const CachedAttention<__nv_bfloat16>&, cudaStream_t);
template void cached_attention(const CachedAttention<__half>&, cudaStream_t);
template void cached_attention(const CachedAttention<float, int8_t>&, cudaStream_t);
template void cached_attention(const CachedAttention<__nv_bfloat16, int8_t>&, cudaStream_t);
template void cached_attention(const CachedAttention<__half, int8_t>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda

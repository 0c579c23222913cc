// Attention of decoding on a GPU: one new token of each of several sequences, over their KV caches. Launchers
// queue kernels in a stream: they allocate nothing and wait for nothing.
//
// Blocks attend to splits of the keys (key_splits_cuda.h) for all query heads of a KV head, so that each key
// and value is read once; then their results are added up in order. Source: Dao et al. 2023, "Flash-Decoding
// for long-context inference".
#pragma once
#include "shardwise/kernels/head_split_cuda.h"
#include "shardwise/kernels/key_splits_cuda.h"

namespace shardwise::kernels::cuda {

/// One layer's cache of a sequence, as StoredHeads are, which has room for another token. S: the model's
/// dtype, or int8_t.
template <class S>
struct CachedSequence {
  S *keys, *values;                  // [k, capacity, d], aligned to what divides a row, at most 16 bytes
  float *key_scales, *value_scales;  // [k, capacity] of int8; unused otherwise
  int64_t capacity;
  int64_t length;  // tokens before the new one; less than the capacity
};

/// The largest head_dim.
inline constexpr int kMostHeadDim = 512;

/// Shapes: `out` [n, a, d], `q` [n, a, 1, d], `k` and `v` [n, k, 1, d] (their strides of rows are unused),
/// `sequences` [n], n < 65,536. Query head i has KV head (i + first) / group.
template <class T, class S = T>
struct CachedAttention {
  T* out;
  float* workspace;  // attention_workspace_bytes, aligned to 16; unused if there is one split
  Heads<const T> q, k, v;
  const CachedSequence<S>* sequences;  // the device's, so that a captured launch reads new ones
  int n, heads, kv_heads, head_dim;
  int group;       // query heads that share a KV head
  int first;       // of the first KV head's group, the query heads that are not here; usually 0
  int64_t window;  // attends to this many keys, the new one included; 0: to all
  KeySplits splits;
};

/// Returns the bytes of CachedAttention's workspace.
inline int64_t attention_workspace_bytes(int n, int heads, int head_dim, const KeySplits& splits) {
  const int64_t of_split = (head_dim + 3) / 4 * 4 + 2;  // a row of sums, the largest score, their sum
  return splits.count == 1 ? 0 : int64_t{4} * n * heads * splits.count * of_split;
}

/// Appends the new keys and values to the caches, in int8 with the bits of store_rows_, and then attends to
/// all of them, in two or three launches. Several new tokens of one sequence are several sequences with the
/// same memory and ascending lengths. T: float, __nv_bfloat16 or __half; S: T or int8_t. Heads of
/// whole packs, of up to 256 elements, are read 16 bytes at a time, or 8 of int8; others by element.
///
/// Bits of a token depend on its sequence and inputs, and on the shapes and splits.rows: not on other
/// sequences, the capacity, splits.count, or the order of blocks. Error: with probabilities w, u = 2⁻²⁴, m
/// splits, a largest Σ |q · k| / √d of A and scores within R, at most 2u · Σ w |v| · (75 + splits.rows + m +
/// 24 · A + R), and a rounding to T.
template <class T, class S>
void cached_attention(const CachedAttention<T, S>& attention, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

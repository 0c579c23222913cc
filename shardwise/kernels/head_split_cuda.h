// The heads in a token's features q|k|v on a GPU, and the positions of rows: for kernels that split or rotate
// heads. Semantics are those of kernels/rotary.h.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Queries, keys or values, or their gradients, [b, heads, s, d], with strides in elements. The elements of a
/// head are contiguous.
template <class T>
struct Heads {
  T* data;
  int64_t batch, head, row;
};
template <class T>
Heads<T> contiguous_heads(T* data, int heads, int64_t s, int d) {
  return {data, heads * s * d, s * d, d};
}

/// The layout and rotation of a token's features q|k|v: query heads, then key heads, then value heads. The
/// s · b · heads of q are fewer than 2³¹. Arrays are the device's.
struct HeadSplit {
  int64_t s;
  int b, heads, kv_heads, head_dim;
  const float *cos, *sin;          // [positions, half], of as many positions as the last row needs
  int half;                        // element i < half of a head is paired with element i + half
  int64_t first_position;          // position of row 0
  const int64_t* first_positions;  // [b], in its place; or null
  const int64_t* valid_begins;  // [b], the first row that is not padding, at which positions begin; or null
};

/// Where a head is in [s, b, heads, d].
struct HeadPlace {
  int64_t row;
  int batch, head;
};
/// Returns the place of the n-th head.
__device__ inline HeadPlace head_place(unsigned n, unsigned heads, unsigned b) {
  const unsigned token = n / heads;  // 64-bit divisions take four times as long
  return {token / b, static_cast<int>(token % b), static_cast<int>(n % heads)};
}

template <class T>
__device__ T* head_in(const Heads<T>& heads, const HeadPlace& at) {
  return heads.data + at.batch * heads.batch + at.head * heads.head + at.row * heads.row;
}
/// Returns the head in `qkv` [s, b, a + 2k, d]; `first` is the first of q, k or v there.
template <class T>
__device__ T* head_in(T* qkv, const HeadSplit& split, int first, const HeadPlace& at) {
  const int64_t token = at.row * split.b + at.batch;
  return qkv + (token * (split.heads + 2 * split.kv_heads) + first + at.head) * split.head_dim;
}

/// Returns where the tables' row of the head begins. Padding has position 0.
__device__ inline int64_t angles_of(const HeadSplit& split, const HeadPlace& at) {
  const int64_t first = split.first_positions ? split.first_positions[at.batch] : split.first_position;
  const int64_t position = first + at.row - (split.valid_begins ? split.valid_begins[at.batch] : 0);
  return (position < 0 ? 0 : position) * split.half;
}

struct RotatedPair {
  float first, second;
};
/// Rotates the elements i and i + half of a head; by −sin backward.
__device__ inline RotatedPair rotated(float first, float second, float cos, float sin) {
  return {first * cos - second * sin, second * cos + first * sin};
}

/// Two of a head's `packs` packs of N elements, which one thread holds: thread t < half/N has the packs t and
/// t + half/N, so that it has both elements of each pair. Those after it have two packs that are not rotated;
/// `second` is `packs` if there is but one. A head has (packs + 1) / 2 such threads. N divides half and d.
struct PackPair {
  int first, second;
  bool is_rotated;
};
__device__ inline PackPair packs_of_thread(int t, int half_packs) {
  if (t < half_packs) return {t, t + half_packs, true};
  return {2 * t, 2 * t + 1, false};
}

}  // namespace shardwise::kernels::cuda

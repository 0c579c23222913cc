// Building blocks of attention by AMX's tiles: blocks of 32 x 32, packed operands, exp2. Only for
// `*_amx.cpp`.
#pragma once
#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/tiles.h"

namespace shardwise::kernels::amx {

inline constexpr int64_t kPart = 32;        // queries, keys or columns of two tiles
inline constexpr int64_t kHalf = 16;        // rows of a tile, and outputs of one
inline constexpr int64_t kTileWords = 256;  // of four bytes: two bf16 or one fp32
inline constexpr int64_t kTileStride = 64;  // bytes of a row
using Tile = MatrixView<float>;             // row(i) is the i-th tile

inline int64_t parts_of(int64_t count) {
  return (count + kPart - 1) / kPart;
}

inline __mmask16 first_of_16(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : count <= 0 ? 0 : (1U << count) - 1);
}
inline __mmask32 first_of_32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? 0 : (__mmask32{1} << count) - 1;
}

/// Returns the 32 columns of part `part` of a row of d columns, zero beyond.
inline __m512i load_part(const Bf16* row, int64_t part, int64_t d) {
  return _mm512_maskz_loadu_epi16(first_of_32(d - part * kPart), row + part * kPart);
}

/// Writes the transpose of 16 rows of 16 words.
[[gnu::always_inline]] inline void store_transposed(float* to, const __m512i* rows) {
  __m512i a[kHalf], b[kHalf];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // b[4j + i]: columns i, i + 4, i + 8, i + 12 of the rows 4j to 4j + 3
    const __m512i even_low = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
    _mm512_storeu_si512(to + i * kHalf, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_storeu_si512(to + (i + 4) * kHalf, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_si512(to + (i + 8) * kHalf, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    _mm512_storeu_si512(to + (i + 12) * kHalf, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
  }
}

/// Returns words of two bf16: the rounded elements of `low` and `high`.
[[gnu::always_inline]] inline __m512i pairs_of(__m512 low, __m512 high) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

/// Returns 2^x = 2^n · 2^r, |r| <= 1/2, for finite x <= 0, with a minimax polynomial. Relative error below
/// 3 · 2^-24.
[[gnu::always_inline]] inline __m512 exp2_of(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.00132647273F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00967151299F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0555073358F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.240222424F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693147004F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
  return _mm512_scalef_ps(p, n);
}

/// Two tiles of sums beside each other and two below them.
inline void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
inline void add_product(const float* upper, const float* lower, const float* left, const float* right) {
  _tile_loadd(4, upper, kTileStride);
  _tile_loadd(6, left, kTileStride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right, kTileStride);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, lower, kTileStride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}
inline void load_tiles(MatrixView<float> from) {
  const int64_t stride = from.stride * int64_t{sizeof(float)};
  _tile_loadd(0, from.row(0), stride);
  _tile_loadd(1, from.row(0) + kHalf, stride);
  _tile_loadd(2, from.row(kHalf), stride);
  _tile_loadd(3, from.row(kHalf) + kHalf, stride);
}
inline void store_tiles(MatrixView<float> to) {
  const int64_t stride = to.stride * int64_t{sizeof(float)};
  _tile_stored(0, to.row(0), stride);
  _tile_stored(1, to.row(0) + kHalf, stride);
  _tile_stored(2, to.row(kHalf), stride);
  _tile_stored(3, to.row(kHalf) + kHalf, stride);
}

}  // namespace shardwise::kernels::amx

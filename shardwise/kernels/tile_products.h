// Products of bf16 tiles, 32 x 32 results at a time: by AMX's tile registers, or in vector registers with
// AVX-512 BF16. Only for `*_tiles.cpp`.
#pragma once
#include <immintrin.h>

#include "shardwise/kernels/small_product.h"
#if defined(__AMX_BF16__)
#include "shardwise/kernels/tiles.h"
#endif

namespace shardwise::kernels::SHARDWISE_ISA {

inline constexpr int64_t kPart = 32;        // rows or columns of two tiles
inline constexpr int64_t kHalf = 16;        // rows of a tile, and words in each
inline constexpr int64_t kTileWords = 256;  // of four bytes: two bf16 or one fp32

/// Two tiles of 16 rows and 32 columns below each other, [row][column], and two of 32 rows and 16 columns
/// beside each other, in pairs of rows: [row / 2][column][row % 2]. Nothing if `upper` is null.
struct Factors {
  const float *upper, *lower, *left, *right;
};

#if defined(__AMX_BF16__)

/// While this lives, the tile registers hold 16 rows of 64 bytes.
using TileRegisters = Tiles;

/// Computes to = Σ_i at(i), or += with `adds`: the sums of products [32, 32] of `count` Factors.
template <bool adds, class At>
inline void sum_products(MatrixView<float> to, int64_t count, At at) {
  constexpr int64_t kBytes = kHalf * sizeof(float);
  const int64_t stride = to.stride * int64_t{sizeof(float)};
  if constexpr (adds) {
    _tile_loadd(0, to.row(0), stride);
    _tile_loadd(1, to.row(0) + kHalf, stride);
    _tile_loadd(2, to.row(kHalf), stride);
    _tile_loadd(3, to.row(kHalf) + kHalf, stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < count; ++i) {
    const Factors factors = at(i);
    if (!factors.upper) continue;
    _tile_loadd(4, factors.upper, kBytes);
    _tile_loadd(6, factors.left, kBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, factors.right, kBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, factors.lower, kBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, to.row(0), stride);
  _tile_stored(1, to.row(0) + kHalf, stride);
  _tile_stored(2, to.row(kHalf), stride);
  _tile_stored(3, to.row(kHalf) + kHalf, stride);
}

#else

struct TileRegisters {
  TileRegisters() {}
};
inline void write_to_memory(const void*) {}

/// As with tile registers; the sums of 8 rows and 32 columns stay in vector registers.
template <bool adds, class At>
inline void sum_products(MatrixView<float> to, int64_t count, At at) {
  constexpr int kRows = 8;
  for (int64_t first = 0; first < kPart; first += kRows) {
    __m512 sums[kRows][2];
    for (int row = 0; row < kRows; ++row) {
      for (int half = 0; half < 2; ++half)
        sums[row][half] = adds ? _mm512_loadu_ps(to.row(first + row) + half * kHalf) : _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < count; ++i) {
      const Factors factors = at(i);
      if (!factors.upper) continue;
      const float* words = (first < kHalf ? factors.upper : factors.lower) + first % kHalf * kHalf;
      for (int64_t pair = 0; pair < kHalf; ++pair) {
        const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_ps(factors.left + pair * kHalf));
        const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_ps(factors.right + pair * kHalf));
        for (int row = 0; row < kRows; ++row) {
          const auto two = reinterpret_cast<__m512bh>(_mm512_set1_ps(words[row * kHalf + pair]));
          sums[row][0] = _mm512_dpbf16_ps(sums[row][0], two, left);
          sums[row][1] = _mm512_dpbf16_ps(sums[row][1], two, right);
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int half = 0; half < 2; ++half)
        _mm512_storeu_ps(to.row(first + row) + half * kHalf, sums[row][half]);
    }
  }
}

#endif

}  // namespace shardwise::kernels::SHARDWISE_ISA

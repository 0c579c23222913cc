// Building blocks of attention by tiles: blocks of 32 x 32, packed operands, exp2. Only for `*_tiles.cpp`.
#pragma once
#include "shardwise/kernels/attention_blocks.h"
#include "shardwise/kernels/tile_products.h"

namespace shardwise::kernels::SHARDWISE_ISA {

inline constexpr double kLog2E = 1.44269504088896341;  // log2(e): softmax is computed in powers of 2
using Tile = MatrixView<float>;                        // row(i) is the i-th tile

static_assert(kPart == kDropoutGroup);  // a word of draw_kept has the bits of a part

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

/// Packs 32 columns of 16 rows into each tile, [16 rows][32 columns], with zeros in padding.
inline void pack_rows(Tile to, HeadRows<const Bf16> from, int64_t rows, int64_t d) {
  for (int64_t row = 0; row < parts_of(rows) * kPart; ++row) {
    for (int64_t part = 0; part < parts_of(d); ++part) {
      float* words = to.row(row / kHalf * parts_of(d) + part) + row % kHalf * kHalf;
      _mm512_storeu_si512(
          words, row < rows ? load_part(from.data + row * from.row, part, d) : _mm512_setzero_si512());
    }
  }
}

/// Packs 16 rows of 32 columns into each tile, [32 columns][16 rows]: in pairs of columns, for a right
/// operand.
inline void pack_rows_right(Tile to, HeadRows<const Bf16> from, int64_t rows, int64_t d) {
  for (int64_t block = 0; block < 2 * parts_of(rows); ++block) {
    for (int64_t part = 0; part < parts_of(d); ++part) {
      __m512i words[kHalf];
      for (int64_t i = 0; i < kHalf; ++i) {
        const int64_t row = block * kHalf + i;
        words[i] = row < rows ? load_part(from.data + row * from.row, part, d) : _mm512_setzero_si512();
      }
      store_transposed(to.row(block * parts_of(d) + part), words);
    }
  }
}

/// Calls `use(i, pairs)` for the i-th tile of 32 rows and 16 columns, where pairs[p] has the elements of the
/// rows 2p and 2p + 1 in words, with zeros in padding.
template <class Use>
void for_row_pairs(HeadRows<const Bf16> from, int64_t rows, int64_t d, Use use) {
  const auto load = [&](int64_t row, int64_t column) {
    if (row >= rows) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(first_of_16(d - column), from.data + row * from.row + column));
  };
  for (int64_t part = 0; part < parts_of(rows); ++part) {
    for (int64_t block = 0; block < 2 * parts_of(d); ++block) {
      __m512i pairs[kHalf];
      for (int64_t pair = 0; pair < kHalf; ++pair) {
        const int64_t row = part * kPart + 2 * pair, column = block * kHalf;
        pairs[pair] = _mm512_or_si512(load(row, column), _mm512_slli_epi32(load(row + 1, column), 16));
      }
      use(part * 2 * parts_of(d) + block, pairs);
    }
  }
}

/// Packs 32 rows of 16 columns into each tile, [16 columns][32 rows].
inline void pack_columns(Tile to, HeadRows<const Bf16> from, int64_t rows, int64_t d) {
  for_row_pairs(from, rows, d, [&](int64_t i, const __m512i* pairs) { store_transposed(to.row(i), pairs); });
}

/// Packs 32 rows of 16 columns into each tile, [32 rows][16 columns]: in pairs of rows, for a right operand.
inline void pack_columns_right(Tile to, HeadRows<const Bf16> from, int64_t rows, int64_t d) {
  for_row_pairs(from, rows, d, [&](int64_t i, const __m512i* pairs) {
    for (int64_t pair = 0; pair < kHalf; ++pair) _mm512_storeu_si512(to.row(i) + pair * kHalf, pairs[pair]);
  });
}

/// Multiplies `columns` [d][32 rows] by a factor for each row, and writes its first `rows` rows to `to`.
inline void write_rows(HeadRows<Bf16> to, int64_t rows, int64_t d, MatrixView<float> columns,
                       const float* factors) {
  alignas(64) float values[kTileWords];
  for (int64_t first = 0; first < rows; first += kHalf) {
    for (int64_t column = 0; column < d; column += kHalf) {
      __m512i words[kHalf];
      for (int64_t i = 0; i < kHalf; ++i) words[i] = _mm512_loadu_si512(columns.row(column + i) + first);
      store_transposed(values, words);
      for (int64_t i = 0; i < smaller(rows - first, kHalf); ++i) {
        const __m512 scaled =
            _mm512_mul_ps(_mm512_load_ps(values + i * kHalf), _mm512_set1_ps(factors[first + i]));
        _mm256_mask_storeu_epi16(to.data + (first + i) * to.row + column, first_of_16(d - column),
                                 reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(scaled)));
      }
    }
  }
}

/// Returns which of 32 queries, from `first` on, attend to a key.
inline __mmask32 attending(int64_t key, int64_t first, const AttentionExtent& extent) {
  if (!extent.causal) return key < keys_of(extent) ? ~__mmask32{0} : 0;
  const int64_t begin = key - extent.past - first;  // attended_keys, solved for the query
  return first_of_32(begin + extent.window) & ~first_of_32(begin);
}

/// Returns which of 16 queries keep a key's probability: its bit in the words of draw_kept.
[[gnu::always_inline]] inline __mmask16 kept_of(const float* words, int64_t key) {
  return _mm512_test_epi32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32(static_cast<int>(1U << key)));
}

/// Rounds 16 elements of `low` and of `high` to the 32 of a row.
[[gnu::always_inline]] inline __m512i row_of(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// Returns words of two bf16: the rounded elements of `low` and `high`.
[[gnu::always_inline]] inline __m512i pairs_of(__m512 low, __m512 high) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, row_of(low, high));
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

/// Computes the 32 x 32 product of `count` tiles in each of two rows and two columns.
inline void multiply_tiles(MatrixView<float> to, Tile upper, Tile lower, Tile left, Tile right,
                           int64_t count) {
  sum_products<false>(to, count, [=](int64_t i) {
    return Factors{upper.row(i), lower.row(i), left.row(i), right.row(i)};
  });
}

}  // namespace shardwise::kernels::SHARDWISE_ISA

#include "shardwise/kernels/panel_lines_bf16.h"

#include <immintrin.h>

#include <algorithm>

#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels::avx512_bf16 {
namespace {

constexpr int kWords = 16;  // of a vector: pairs of columns of an output, or outputs of a line
constexpr int64_t kWordBytes = 4, kColumnBytes = 2;
/// Ahead in each of the rows, which the hardware's prefetcher does not follow all.
constexpr int64_t kPrefetchBytes = 512;

/// Transposes 16 × 16 words: in pairs and fours within the quarters of the vectors, then the quarters.
void transpose(__m512i (&v)[kWords]) {
  __m512i t[kWords];
#pragma GCC unroll 8
  for (int i = 0; i < kWords; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kWords; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  constexpr int kEven = 0x88, kOdd = 0xdd;  // quarters of both operands
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], kEven);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], kOdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], kEven);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], kOdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], kEven);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], kEven);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], kOdd);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], kOdd);
  }
}

/// Returns a mask of the first `count` words, of which there may be fewer or more.
__mmask16 first(int64_t count) {
  return static_cast<__mmask16>((1U << std::clamp<int64_t>(count, 0, kWords)) - 1);
}

/// Writes 16 outputs of up to 16 lines, from the words at `offset` of `count` rows.
void pack_square(uint8_t* to, const uint8_t* const* rows, int64_t count, int64_t offset, int64_t lines) {
  __m512i words[kWords];
  const __mmask16 columns = first(lines);
#pragma GCC unroll 16
  for (int i = 0; i < kWords; ++i) {
    const uint8_t* from = rows[std::min<int64_t>(i, std::max<int64_t>(count - 1, 0))] + offset;
    words[i] = _mm512_maskz_loadu_epi32(i < count ? columns : 0, from);
    _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetchBytes), _MM_HINT_T1);
  }
  transpose(words);
  if (lines >= kWords) {
#pragma GCC unroll 16
    for (int i = 0; i < kWords; ++i) _mm512_storeu_si512(to + i * kPanelLineBytes, words[i]);
    return;
  }
  for (int i = 0; i < lines; ++i) _mm512_storeu_si512(to + i * kPanelLineBytes, words[i]);
}

}  // namespace

void pack_lines(uint8_t* lines, const uint8_t* const* rows, int64_t count, int64_t begin, int64_t end) {
  constexpr int64_t kSquareColumns = kWords * kWordBytes / kColumnBytes;
  for (int64_t column = begin; column < end; column += kSquareColumns) {
    const int64_t left = (end - column) * kColumnBytes / kWordBytes;
    for (int64_t output = 0; output < kPanelOutputs; output += kWords) {
      const int64_t outputs = count - output;
      pack_square(lines + output * kWordBytes, outputs > 0 ? rows + output : rows, outputs,
                  column * kColumnBytes, left);
    }
    lines += kWords * kPanelLineBytes;
  }
}

}  // namespace shardwise::kernels::avx512_bf16

#include "shardwise/kernels/panel_pairs_bf16.h"

#include <immintrin.h>

namespace shardwise::kernels::avx512_bf16 {
namespace {

constexpr int64_t kLanes = 16;  // outputs per vector

/// The scales of 16 outputs, and −zero point · scale. Both have few enough bits for exact products with
/// quantized values in fp32.
struct Affine {
  __m512 scale, offset;

  Affine(const uint8_t* header, int64_t first, const PanelShape& shape) {
    const void* halves = header + 2 * first;
    scale = _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(halves)));
    __m512i zero = _mm512_set1_epi32(shape.symmetric_zero_point());
    if (shape.has_zero_points) {
      const void* bytes = header + 2 * kPanelOutputs + first;
      zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(bytes)));
    }
    offset = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_setzero_si512(), zero)));
  }

  /// Returns the value of the lowest `bits` bits of each word >> shift.
  template <int bits, int shift>
  __m512 value(__m512i words) const {
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, shift), mask)), scale,
                           offset);
  }
};

/// Rounds to bf16, and interleaves the columns of each output.
template <int bits, int first_shift, int second_shift>
void store_pair(uint32_t* to, __m512i words, const Affine& affine) {
  const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                               23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512bh both =
      _mm512_cvtne2ps_pbh(affine.value<bits, second_shift>(words), affine.value<bits, first_shift>(words));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(interleaved, reinterpret_cast<__m512i>(both)));
}

template <int bits>
void dequantize_line(uint32_t* to, __m512i words, const Affine& affine) {
  if constexpr (bits == 8) {
    store_pair<8, 0, 8>(to, words, affine);
    store_pair<8, 16, 24>(to + kPanelOutputs, words, affine);
  } else {
    store_pair<4, 0, 8>(to, words, affine);
    store_pair<4, 16, 24>(to + kPanelOutputs, words, affine);
    store_pair<4, 4, 12>(to + 2 * kPanelOutputs, words, affine);
    store_pair<4, 20, 28>(to + 3 * kPanelOutputs, words, affine);
  }
}

template <int bits>
void dequantize_run(uint32_t* to, const uint8_t* panel, const PanelRun& run, const PanelShape& shape) {
  constexpr int64_t kStep = 16 / bits * kPanelOutputs;  // words per line
  for (int64_t first = 0; first < kPanelOutputs; first += kLanes) {
    const Affine affine(panel + run.header, first, shape);
    const uint8_t* line = panel + run.begin + 4 * first;
    for (int64_t s = 0; s < run.lines; ++s, line += kPanelLineBytes)
      dequantize_line<bits>(to + s * kStep + first, _mm512_loadu_si512(line), affine);
  }
}

}  // namespace

void dequantize_pairs(uint32_t* to, const uint8_t* panel, int64_t first_run, int64_t run_count,
                      const PanelShape& shape) {
  const auto one = shape.bits == 4 ? dequantize_run<4> : dequantize_run<8>;
  for (int64_t i = first_run; i < first_run + run_count; ++i) {
    one(to, panel, shape.runs[i], shape);
    to += shape.runs[i].lines * (16 / shape.bits) * kPanelOutputs;
  }
}

}  // namespace shardwise::kernels::avx512_bf16

#include "shardwise/kernels/panel_rows_int16_isa.h"

#include <immintrin.h>

#include "shardwise/base/prefetch.h"
#include "shardwise/kernels/panel_header.h"
#include "shardwise/kernels/vectors.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

using Words = Vector<int32_t>;

/// Returns x[0] · y[0] + x[1] · y[1] of the int16 in each lane.
inline Words pair_products(Words x, Words y) {
#if defined(__AVX512BW__)
  return Words(_mm512_madd_epi16(__m512i(x), __m512i(y)));
#elif defined(__AVX2__)
  return Words(_mm256_madd_epi16(__m256i(x), __m256i(y)));
#else
  return Words(_mm_madd_epi16(__m128i(x), __m128i(y)));
#endif
}

/// Shifts the int16 of each lane to the right.
inline Words shifted(Words x, int bits) {
  return Words(Vector<uint16_t>(x) >> bits);
}

inline Words load_words(const void* from) {
  return *static_cast<const Words*>(from);
}

constexpr int kLanesOfVector = sizeof(Words) / 4;
constexpr int kVectorsOfLine = kPanelOutputs / kLanesOfVector;
/// Sums that the registers hold beside a line's values.
constexpr int kSumsInRegisters = sizeof(Words) == 64 ? 16 : 8;

// --- splitting ---------------------------------------------------------------------------------------------

/// Returns the position of a line's column in its pairs.
constexpr int position_of(int column) {
  return column / 4 * 4 + (column % 2) * 2 + column % 4 / 2;
}

/// Returns the run's largest magnitude, or NaN if it contains NaN or infinity.
template <class T>
float magnitude_of(const T* x, int64_t columns) {
  const float largest = max_of<float>(columns, [x](int64_t k) { return __builtin_fabsf(widen(x[k])); });
  return largest + sum_of<float>(columns, [x](int64_t k) { return widen(x[k]) * 0.0F; });
}

template <int bits, class T>
void split_row(int16_t* levels, float* scales, int32_t* sums, const T* x, const PanelShape& shape) {
  constexpr float kLeast = 0x1p-110f, kLargest = 32767;
  constexpr int kColumns = 32 / bits;
  for (int64_t run = 0; run < shape.run_count; ++run) {
    const int64_t columns = shape.runs[run].lines * kColumns;
    const float magnitude = magnitude_of(x, columns);
    scales[run] = magnitude < kLeast ? 0 : magnitude / kLargest;
    const float inverse = scales[run] > 0 ? 1 / scales[run] : 0;
    int32_t sum = 0;
    for (int64_t k = 0; k < columns; ++k) {
      constexpr float kRound = 12582912.0F;  // adding 1.5 · 2^23 rounds to an integer
      const float level = (widen(x[k]) * inverse + kRound) - kRound;
      const int32_t integer = level == level ? static_cast<int32_t>(level) : 0;
      levels[k / kColumns * kColumns + position_of(static_cast<int>(k % kColumns))] =
          static_cast<int16_t>(integer);
      sum += integer;
    }
    sums[run] = sum;
    levels += columns;
    x += columns;
  }
}

template <class T>
void split(const SplitRows& to, const T* x, int64_t x_stride, int64_t rows, const PanelShape& shape) {
  const auto one = shape.bits == 4 ? split_row<4, T> : split_row<8, T>;
  for (int64_t row = 0; row < rows; ++row) {
    auto* levels = reinterpret_cast<int16_t*>(to.levels + row * to.row_bytes());
    one(levels, to.scales + row * to.runs, to.sums + row * to.runs, x + row * x_stride, shape);
  }
}

// --- multiplying -------------------------------------------------------------------------------------------

/// Returns two int16 as the two halves of every lane.
inline Words broadcast(const int16_t* two) {
  int32_t word;
  __builtin_memcpy(&word, two, sizeof(word));
  return word + Words{};
}

/// A line's values of a vector's outputs as int16: in pairs of columns, as levels are.
template <int bits>
struct Pairs {
  Words of[16 / bits];

  explicit Pairs(Words line) {
    if constexpr (bits == 8) {
      of[0] = line & 0x00ff00ff;
      of[1] = shifted(line, 8);
    } else {
      of[0] = line & 0x000f000f;
      of[1] = shifted(line, 8) & 0x000f000f;
      of[2] = shifted(line, 4) & 0x000f000f;
      of[3] = shifted(line, 12);
    }
  }
};

/// Adds the integer products of `rows` rows with a run's outputs [first, first + vectors) · lanes to `sums`.
template <int bits, int rows, int vectors>
void add_lines(int32_t* sums, const int16_t* levels, int64_t levels_stride, const uint8_t* line,
               int64_t lines, int first) {
  constexpr int kPairs = 16 / bits;
  const int64_t ahead = vectors == kVectorsOfLine ? base::prefetch_bytes() : lines * kPanelLineBytes;
  Words sum[rows][vectors];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = load_words(sums + r * kPanelOutputs + (first + v) * kLanesOfVector);
  }
  line += first * sizeof(Words);
  for (int64_t s = 0; s < lines; ++s, line += kPanelLineBytes, levels += 2 * kPairs) {
    for (int64_t at = 0; at < int64_t{vectors} * int64_t{sizeof(Words)}; at += 64)
      __builtin_prefetch(line + ahead + at, /*rw=*/0, /*locality=*/2);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      const Pairs<bits> pairs(load_words(line + v * sizeof(Words)));
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; ++i)
          sum[r][v] += pair_products(pairs.of[i], broadcast(levels + r * levels_stride + 2 * i));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v)
      *reinterpret_cast<Words*>(sums + r * kPanelOutputs + (first + v) * kLanesOfVector) = sum[r][v];
  }
}

template <int bits, int rows>
void multiply_rows(float* __restrict y, const SplitRows& x, const uint8_t* panel, const PanelShape& shape) {
  constexpr int kFit = kSumsInRegisters / rows, kVectors = kFit < kVectorsOfLine ? kFit : kVectorsOfLine;
  PanelHeader header = {};
  int64_t header_at = -1, column = 0;
  for (int64_t i = 0; i < rows * kPanelOutputs; ++i) y[i] = 0;
  for (int64_t run = 0; run < shape.run_count; ++run) {
    const PanelRun& at = shape.runs[run];
    if (at.header != header_at) read(header, panel + at.header, shape);
    header_at = at.header;
    int32_t sums[rows * kPanelOutputs];
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < kPanelOutputs; ++o)
        sums[r * kPanelOutputs + o] = -header.zero_points[o] * x.sums[r * x.runs + run];
    }
    const auto* levels = reinterpret_cast<const int16_t*>(x.levels) + column;
    for (int first = 0; first < kVectorsOfLine; first += kVectors)
      add_lines<bits, rows, kVectors>(sums, levels, x.columns, panel + at.begin, at.lines, first);
    for (int r = 0; r < rows; ++r) {
      const float scale = x.scales[r * x.runs + run];
      for (int o = 0; o < kPanelOutputs; ++o)
        y[r * kPanelOutputs + o] +=
            static_cast<float>(sums[r * kPanelOutputs + o]) * (header.scales[o] * scale);
    }
    column += at.lines * (32 / bits);
  }
}

template <int bits>
void multiply_any(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel, const PanelShape& shape) {
  constexpr void (*kByRows[])(float*, const SplitRows&, const uint8_t*, const PanelShape&) = {
      multiply_rows<bits, 1>, multiply_rows<bits, 2>, multiply_rows<bits, 3>, multiply_rows<bits, 4>};
  kByRows[rows - 1](y, x, panel, shape);
}

void multiply(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel, const PanelShape& shape) {
  if (shape.bits == 4) return multiply_any<4>(y, x, rows, panel, shape);
  multiply_any<8>(y, x, rows, panel, shape);
}

}  // namespace

template <class T>
PanelRowsInt16Loops<T> panel_rows_int16_loops() {
  return {split<T>, multiply};
}
template PanelRowsInt16Loops<base::Bf16> panel_rows_int16_loops<base::Bf16>();
template PanelRowsInt16Loops<base::Fp16> panel_rows_int16_loops<base::Fp16>();

}  // namespace shardwise::kernels::SHARDWISE_ISA

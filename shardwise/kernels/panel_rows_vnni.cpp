#include "shardwise/kernels/panel_rows_vnni.h"

#include <immintrin.h>

#include "shardwise/base/prefetch.h"

namespace shardwise::kernels::avx512_vnni {
namespace {

/// The largest integer whose parts are int8: 127, or 127·256 + 127.
constexpr float largest_of(int part_count) {
  return part_count == 1 ? 127 : 32639;
}
/// Outputs per vector, and elements that are split at once.
constexpr int64_t kLanes = 16;

// --- splitting ---------------------------------------------------------------------------------------------

__mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffffu : (1u << count) - 1);
}

__m512 widened(__mmask16 lanes, const base::Bf16* x) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
__m512 widened(__mmask16 lanes, const base::Fp16* x) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, x));
}
__m512 widened(__mmask16 lanes, const float* x) {
  return _mm512_maskz_loadu_ps(lanes, x);
}

/// Returns the run's largest magnitude, or NaN if it contains NaN or infinity.
template <class T>
float magnitude_of(const T* x, int64_t columns) {
  __m512 largest = _mm512_setzero_ps(), zeros = _mm512_setzero_ps();
  for (int64_t k = 0; k < columns; k += kLanes) {
    const __m512 part = widened(first_lanes(columns - k), x + k);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(part));
    zeros = _mm512_fmadd_ps(part, _mm512_setzero_ps(), zeros);  // NaN · 0 and ∞ · 0 are NaN
  }
  return _mm512_reduce_max_ps(largest) + _mm512_reduce_add_ps(zeros);
}

/// The parts of 16 elements.
struct Parts {
  __m512i high, low;

  /// Splits integers; with one part, `low` is unused.
  Parts(__m512i level, int part_count) {
    if (part_count == 1) {
      high = level;
      low = _mm512_setzero_si512();
      return;
    }
    high = _mm512_srai_epi32(_mm512_add_epi32(level, _mm512_set1_epi32(128)), 8);
    low = _mm512_sub_epi32(level, _mm512_slli_epi32(high, 8));
  }
};

/// Stores two parts of `count` elements, interleaved by line.
template <int bits>
void store_interleaved(int8_t* to, __m128i high, __m128i low, int64_t count) {
  const __m128i first = bits == 4 ? _mm_unpacklo_epi64(high, low) : _mm_unpacklo_epi32(high, low);
  const __m128i second = bits == 4 ? _mm_unpackhi_epi64(high, low) : _mm_unpackhi_epi32(high, low);
  _mm_mask_storeu_epi8(to, first_lanes(2 * count), first);
  _mm_mask_storeu_epi8(to + kLanes, first_lanes(2 * count > kLanes ? 2 * count - kLanes : 0), second);
}

/// Where a run's levels go.
enum class Order { lines, tiles };

/// Returns the bytes from a row's levels of one run to those of the next.
template <Order order, int part_count>
int64_t run_bytes(int64_t columns) {
  if (order == Order::lines) return part_count * columns;
  return part_count * ((columns + kLevelTileColumns - 1) / kLevelTileColumns) * kLevelTileBytes;
}

/// Splits the columns of a run. In tiles a part of 64 columns is consecutive, and zero in padding.
template <int bits, int part_count, Order order, class T>
void split_run(int8_t* parts, int32_t* sums, const T* x, int64_t columns, float scale) {
  const __m512 inverse = _mm512_set1_ps(scale > 0 ? 1 / scale : 0);
  __m512i high_sum = _mm512_setzero_si512(), low_sum = _mm512_setzero_si512();
  const int64_t end = order == Order::lines ? columns : run_bytes<order, 1>(columns) / kLevelTileRows;
  for (int64_t k = 0; k < end; k += kLanes) {
    const int64_t count = columns - k < kLanes ? (columns < k ? 0 : columns - k) : kLanes;
    const __m512 part = widened(first_lanes(count), x + k);
    const Parts split(_mm512_cvtps_epi32(_mm512_mul_ps(part, inverse)), part_count);
    high_sum = _mm512_add_epi32(high_sum, split.high);
    low_sum = _mm512_add_epi32(low_sum, split.low);
    const __m128i high = _mm512_cvtepi32_epi8(split.high), low = _mm512_cvtepi32_epi8(split.low);
    if constexpr (order == Order::tiles) {
      int8_t* to = parts + k / kLevelTileColumns * part_count * kLevelTileBytes + k % kLevelTileColumns;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), high);
      if constexpr (part_count == 2) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kLevelTileBytes), low);
    } else if constexpr (part_count == 1) {
      _mm_mask_storeu_epi8(parts + k, first_lanes(count), high);
    } else {
      store_interleaved<bits>(parts + 2 * k, high, low, count);
    }
  }
  sums[0] = _mm512_reduce_add_epi32(high_sum);
  if constexpr (part_count == 2) sums[1] = _mm512_reduce_add_epi32(low_sum);
}

template <int bits, int part_count, Order order, class T>
void split_row(int8_t* parts, float* scales, int32_t* sums, const T* x, const PanelShape& shape) {
  constexpr float kLeast = 0x1p-110f;  // below, the scale's inverse would overflow
  for (int64_t run = 0; run < shape.run_count; ++run) {
    const int64_t columns = shape.runs[run].lines * (32 / bits);
    const float magnitude = magnitude_of(x, columns);
    scales[run] = magnitude < kLeast ? 0 : magnitude / largest_of(part_count);
    split_run<bits, part_count, order>(parts, sums + part_count * run, x, columns, scales[run]);
    parts += run_bytes<order, part_count>(columns);
    x += columns;
  }
}

/// Returns the first level of a row.
int8_t* levels_of(const SplitRows& to, int64_t row) {
  if (!to.is_tiled) return to.levels + row * to.row_bytes();
  const int64_t in_tile = row % kLevelTileRows;
  return to.levels + (row - in_tile) * to.row_bytes() + in_tile * kLevelTileColumns;
}

// --- multiplying -------------------------------------------------------------------------------------------

/// A group's header, and the lines of a run.
struct Run {
  const uint8_t *header, *lines;
  int64_t line_count;
};

/// Pointers to row 0 of a run's split elements, and the distances to the next row.
struct RunRows {
  const int8_t* parts;
  const float* scales;
  const int32_t* sums;
  int64_t parts_stride, runs;
};

__m512i broadcast(const int8_t* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof(word));
  return _mm512_set1_epi32(word);
}

/// Adds four products for each sum. GCC 12 surrounds the intrinsic in unrolled loops with copies of the sums,
/// some in memory, which takes up to a fifth of the time.
void add_dot_products(__m512i& sums, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}

/// Returns −zero point · sum for 16 outputs. The sum of a run that contains NaN may overflow: its scale is
/// NaN.
__m512i minus_zeros(const Run& run, int64_t vector, int32_t sum, const PanelShape& shape) {
  const uint32_t minus_sum = -static_cast<uint32_t>(sum);
  if (!shape.has_zero_points)
    return _mm512_set1_epi32(
        static_cast<int32_t>(static_cast<uint32_t>(shape.symmetric_zero_point()) * minus_sum));
  const uint8_t* bytes = run.header + 2 * kPanelOutputs + vector * kLanes;
  const __m512i zeros = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return _mm512_mullo_epi32(zeros, _mm512_set1_epi32(static_cast<int32_t>(minus_sum)));
}

/// The sums of `rows` rows with 16·vectors outputs. All loops over these are unrolled, so that the sums stay
/// in registers.
template <int bits, int part_count, int rows, int vectors>
struct Sums {
  static constexpr int kBytes = 8 / bits;  // values of an output in a byte, and so vectors of a line's bytes
  __m512i of[rows][part_count][vectors];

  void start(const RunRows& x, const Run& run, int64_t first, const PanelShape& shape) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 2
      for (int64_t p = 0; p < part_count; ++p) {
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v)
          of[r][p][v] = minus_zeros(run, first + v, x.sums[part_count * r * x.runs + p], shape);
      }
    }
  }

  void add_line(const int8_t* parts, int64_t parts_stride, const uint8_t* line) {
    __m512i bytes[vectors][kBytes];
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) {
      const __m512i loaded = _mm512_loadu_si512(line + v * (kPanelLineBytes / 4));
      const __m512i mask = _mm512_set1_epi8(15);
      bytes[v][0] = bits == 8 ? loaded : _mm512_and_si512(loaded, mask);
      if constexpr (bits == 4) bytes[v][1] = _mm512_and_si512(_mm512_srli_epi32(loaded, 4), mask);
    }
    // A row's parts are used for all vectors before the next ones: those of all rows need too many registers.
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r, parts += parts_stride) {
#pragma GCC unroll 2
      for (int64_t i = 0; i < kBytes; ++i) {
#pragma GCC unroll 2
        for (int64_t p = 0; p < part_count; ++p) {
          const __m512i part = broadcast(parts + 4 * (p * kBytes + i));
#pragma GCC unroll 4
          for (int64_t v = 0; v < vectors; ++v) add_dot_products(of[r][p][v], bytes[v][i], part);
        }
      }
    }
  }

  /// Returns a row's sums in units of its scale.
  __m512 total(int64_t r, int64_t v) const {
    const __m512 high = _mm512_cvtepi32_ps(of[r][0][v]);
    if constexpr (part_count == 1) return high;
    return _mm512_fmadd_ps(high, _mm512_set1_ps(256), _mm512_cvtepi32_ps(of[r][part_count - 1][v]));
  }

  void add_to(float* y, const RunRows& x, const Run& run, int64_t first) const {
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) {
      const uint8_t* halves = run.header + 2 * (first + v) * kLanes;
      const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) {
        float* out = y + r * kPanelOutputs + (first + v) * kLanes;
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[r * x.runs]));
        _mm512_storeu_ps(out, _mm512_fmadd_ps(total(r, v), both, _mm512_loadu_ps(out)));
      }
    }
  }
};

/// Adds the products of `rows` rows with 16·vectors outputs of a run to y.
template <int bits, int part_count, int rows, int vectors>
void add_run(float* y, const RunRows& x, const Run& run, int64_t first, const PanelShape& shape) {
  constexpr int64_t kStep = int64_t{part_count} * (32 / bits);  // bytes of a row's parts per line
  // If there are several passes, each prefetches its outputs of the next run, so that all passes read memory.
  const int64_t ahead = vectors == 4 ? base::prefetch_bytes() : run.line_count * kPanelLineBytes;
  Sums<bits, part_count, rows, vectors> sums;
  sums.start(x, run, first, shape);
  const int8_t* parts = x.parts;
  const uint8_t* line = run.lines + first * (kPanelLineBytes / 4);
  for (int64_t s = 0; s < run.line_count; ++s, line += kPanelLineBytes, parts += kStep) {
    for (int64_t v = 0; v < vectors; ++v) _mm_prefetch(line + ahead + v * (kPanelLineBytes / 4), _MM_HINT_T1);
    sums.add_line(parts, x.parts_stride, line);
  }
  sums.add_to(y, x, run, first);
}

/// Adds the products of `rows` rows with a run. Uses as many vectors of outputs at once as the registers hold
/// the accumulators of.
template <int bits, int part_count, int rows>
void add_rows(float* y, const RunRows& x, const Run& run, const PanelShape& shape) {
  constexpr int kSums = part_count * rows, kVectors = kSums <= 4 ? 4 : 2;
  static_assert(kSums <= 8);
  for (int64_t first = 0; first < 4; first += kVectors)
    add_run<bits, part_count, rows, kVectors>(y, x, run, first, shape);
}

/// Two vectors of outputs use each element that is read of a row twice: rows whose accumulators of two
/// vectors do not fit the registers are multiplied in two halves, while a run's lines are in the first-level
/// cache.
template <int bits, int part_count, int rows>
void multiply_rows(float* y, const SplitRows& x, const uint8_t* panel, const PanelShape& shape) {
  constexpr int kFirst = part_count * rows <= 8 ? rows : (rows + 1) / 2, kRest = rows - kFirst;
  RunRows row{x.levels, x.scales, x.sums, x.row_bytes(), x.runs};
  for (int64_t i = 0; i < rows * kPanelOutputs; ++i) y[i] = 0;
  for (int64_t i = 0; i < shape.run_count; ++i) {
    const PanelRun& at = shape.runs[i];
    const Run run{panel + at.header, panel + at.begin, at.lines};
    add_rows<bits, part_count, kFirst>(y, row, run, shape);
    if constexpr (kRest > 0) {
      const RunRows rest{row.parts + kFirst * row.parts_stride, row.scales + kFirst * row.runs,
                         row.sums + kFirst * row.runs * part_count, row.parts_stride, row.runs};
      add_rows<bits, part_count, kRest>(y + kFirst * kPanelOutputs, rest, run, shape);
    }
    row.parts += at.lines * part_count * (32 / bits);
    row.scales += 1;
    row.sums += part_count;
  }
}

template <int bits, int part_count>
void multiply_any(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel, const PanelShape& shape) {
  constexpr void (*kByRows[])(float*, const SplitRows&, const uint8_t*, const PanelShape&) = {
      multiply_rows<bits, part_count, 1>, multiply_rows<bits, part_count, 2>,
      multiply_rows<bits, part_count, 3>, multiply_rows<bits, part_count, 4>,
      multiply_rows<bits, part_count, 5>, multiply_rows<bits, part_count, 6>,
      multiply_rows<bits, part_count, 7>, multiply_rows<bits, part_count, 8>};
  kByRows[rows - 1](y, x, panel, shape);
}

/// Calls f<bits, part_count>().
template <class F>
void with_constants(const PanelShape& shape, int64_t part_count, const F& f) {
  if (shape.bits == 4) return part_count == 1 ? f.template operator()<4, 1>() : f.template operator()<4, 2>();
  return part_count == 1 ? f.template operator()<8, 1>() : f.template operator()<8, 2>();
}

}  // namespace

template <class T>
void split(const SplitRows& to, const T* x, int64_t x_stride, int64_t rows, const PanelShape& shape) {
  with_constants(shape, to.sum_count, [&]<int bits, int part_count>() {
    const auto one = to.is_tiled ? split_row<bits, part_count, Order::tiles, T>
                                 : split_row<bits, part_count, Order::lines, T>;
    for (int64_t row = 0; row < rows; ++row)
      one(levels_of(to, row), to.scales + row * to.runs, to.sums + part_count * row * to.runs,
          x + row * x_stride, shape);
  });
}

template void split(const SplitRows&, const base::Bf16*, int64_t, int64_t, const PanelShape&);
template void split(const SplitRows&, const base::Fp16*, int64_t, int64_t, const PanelShape&);
template void split(const SplitRows&, const float*, int64_t, int64_t, const PanelShape&);

void multiply(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel, const PanelShape& shape) {
  with_constants(shape, x.sum_count, [&]<int bits, int part_count>() {
    multiply_any<bits, part_count>(y, x, rows, panel, shape);
  });
}

}  // namespace shardwise::kernels::avx512_vnni

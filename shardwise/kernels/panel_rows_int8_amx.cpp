#include "shardwise/kernels/panel_rows_int8_amx.h"

#include "shardwise/kernels/tiles.h"

namespace shardwise::kernels::amx {
namespace {

constexpr int64_t kLanes = 16, kVectors = kPanelOutputs / kLanes;
constexpr int64_t kVectorBytes = 64;
/// The lines of int8 of 64 columns: four tiles beside each other.
constexpr int64_t kBlockLines = kLevelTileColumns / 4, kBlockBytes = kBlockLines * kPanelLineBytes;
constexpr int64_t kMostBlocks = 2;  // of a run: 128 columns

int64_t blocks_of(int64_t columns) {
  return (columns + kLevelTileColumns - 1) / kLevelTileColumns;
}

/// A run's values as lines of int8, and its group's header.
struct Run {
  const uint8_t *header, *lines;
  int64_t blocks;
};

/// Memory for the lines of a run that are not in the panel: those of int4, and incomplete blocks.
struct Unpacked {
  alignas(64) uint8_t lines[kMostBlocks * kBlockBytes];
};

void prefetch_line(const uint8_t* line) {
  for (int64_t v = 0; v < kVectors; ++v)
    _mm_prefetch(reinterpret_cast<const char*>(line + v * kVectorBytes), _MM_HINT_T1);
}

/// Writes the two lines of int8 of every line of int4.
void unpack(uint8_t* to, const uint8_t* line, int64_t lines) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int64_t s = 0; s < lines; ++s, line += kPanelLineBytes, to += 2 * kPanelLineBytes) {
    prefetch_line(line + lines * kPanelLineBytes);
    for (int64_t v = 0; v < kVectors; ++v) {
      const __m512i bytes = _mm512_loadu_si512(line + v * kVectorBytes);
      _mm512_store_si512(to + v * kVectorBytes, _mm512_and_si512(bytes, mask));
      _mm512_store_si512(to + kPanelLineBytes + v * kVectorBytes,
                         _mm512_and_si512(_mm512_srli_epi32(bytes, 4), mask));
    }
  }
}

/// Reads a run, and prefetches as many lines that follow. Values in padding are multiplied with zeros.
Run read_run(Unpacked& memory, const uint8_t* panel, const PanelRun& run, const PanelShape& shape) {
  const uint8_t* lines = panel + run.begin;
  const int64_t blocks = blocks_of(run.lines * shape.columns_per_line());
  if (shape.bits == 4) {
    unpack(memory.lines, lines, run.lines);
    return {panel + run.header, memory.lines, blocks};
  }
  for (int64_t s = 0; s < run.lines; ++s) prefetch_line(lines + (run.lines + s) * kPanelLineBytes);
  if (run.lines % kBlockLines == 0) return {panel + run.header, lines, blocks};
  __builtin_memcpy(memory.lines, lines, run.lines * kPanelLineBytes);
  return {panel + run.header, memory.lines, blocks};
}

/// The integer sums of up to 16 rows with 32 outputs, one tile for each part and vector.
struct Sums {
  alignas(64) int32_t of[2][kLevelTileRows][2 * kLanes];
};

constexpr int64_t kSumStride = 2 * kLanes * int64_t{sizeof(int32_t)};

template <int part_count>
void multiply_half(Sums& sums, const int8_t* levels, const Run& run, int64_t half) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const uint8_t* lines = run.lines + half * 2 * kVectorBytes;
  for (int64_t i = 0; i < run.blocks; ++i, lines += kBlockBytes, levels += part_count * kLevelTileBytes) {
    _tile_loadd(4, levels, kLevelTileColumns);
    _tile_loadd(6, lines, kPanelLineBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, lines + kVectorBytes, kPanelLineBytes);
    _tile_dpbsud(1, 4, 7);
    if constexpr (part_count == 2) {
      _tile_loadd(5, levels + kLevelTileBytes, kLevelTileColumns);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, sums.of[0][0], kSumStride);
  _tile_stored(1, sums.of[0][0] + kLanes, kSumStride);
  if constexpr (part_count == 2) {
    _tile_stored(2, sums.of[1][0], kSumStride);
    _tile_stored(3, sums.of[1][0] + kLanes, kSumStride);
  }
}

/// The scales and zero points of 16 outputs.
struct Affine {
  __m512 scale;
  __m512i minus_zero;

  Affine(const uint8_t* header, int64_t vector, const PanelShape& shape) {
    const void* halves = header + 2 * vector * kLanes;
    scale = _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(halves)));
    __m512i zero = _mm512_set1_epi32(shape.symmetric_zero_point());
    if (shape.has_zero_points) {
      const void* bytes = header + 2 * kPanelOutputs + vector * kLanes;
      zero = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(bytes)));
    }
    minus_zero = _mm512_sub_epi32(_mm512_setzero_si512(), zero);
  }
};

/// Returns Σ level · (value − zero point) of one part.
__m512 centered(const int32_t* sum, const Affine& affine, int32_t level_sum) {
  const __m512i correction = _mm512_mullo_epi32(affine.minus_zero, _mm512_set1_epi32(level_sum));
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_load_si512(sum), correction));
}

/// Adds the products of rows with 32 outputs to y, in the order of panel_rows_vnni.cpp. `x` begins at the
/// first row, its scales and sums at the run.
template <int part_count>
void add_half(float* y, const Sums& sums, const SplitRows& x, int64_t rows, const Run& run, int64_t half,
              const PanelShape& shape) {
  for (int64_t v = 0; v < 2; ++v) {
    const int64_t vector = 2 * half + v;
    const Affine affine(run.header, vector, shape);
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t* level_sums = x.sums + part_count * r * x.runs;
      __m512 total = centered(sums.of[0][r] + v * kLanes, affine, level_sums[0]);
      if constexpr (part_count == 2)
        total = _mm512_fmadd_ps(total, _mm512_set1_ps(256),
                                centered(sums.of[1][r] + v * kLanes, affine, level_sums[1]));
      float* out = y + r * kPanelOutputs + vector * kLanes;
      const __m512 both = _mm512_mul_ps(affine.scale, _mm512_set1_ps(x.scales[r * x.runs]));
      _mm512_storeu_ps(out, _mm512_fmadd_ps(total, both, _mm512_loadu_ps(out)));
    }
  }
}

template <int part_count>
void multiply_runs(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel,
                   const PanelShape& shape) {
  Unpacked memory;
  Sums sums;
  int64_t levels = 0;  // of a row before the run
  for (int64_t i = 0; i < shape.run_count; ++i) {
    const Run run = read_run(memory, panel, shape.runs[i], shape);
    write_to_memory(memory.lines);
    for (int64_t row = 0; row < rows; row += kLevelTileRows) {
      SplitRows tile = x.from(row);
      tile.scales += i;
      tile.sums += part_count * i;
      const int64_t count = rows - row < kLevelTileRows ? rows - row : kLevelTileRows;
      for (int64_t half = 0; half < 2; ++half) {
        multiply_half<part_count>(sums, tile.levels + kLevelTileRows * levels, run, half);
        add_half<part_count>(y + row * kPanelOutputs, sums, tile, count, run, half, shape);
      }
    }
    levels += part_count * run.blocks * kLevelTileColumns;
  }
}

}  // namespace

int64_t level_columns(const PanelShape& shape) {
  int64_t columns = 0;
  for (int64_t i = 0; i < shape.run_count; ++i)
    columns += blocks_of(shape.runs[i].lines * shape.columns_per_line()) * kLevelTileColumns;
  return columns;
}

void multiply_levels(float* y, const SplitRows& x, int64_t rows, const uint8_t* panel,
                     const PanelShape& shape) {
  const Tiles configured(rows < kLevelTileRows ? rows : kLevelTileRows);
  for (int64_t i = 0; i < rows * kPanelOutputs; ++i) y[i] = 0;
  const auto multiply = x.sum_count == 1 ? multiply_runs<1> : multiply_runs<2>;
  multiply(y, x, rows, panel, shape);
}

}  // namespace shardwise::kernels::amx

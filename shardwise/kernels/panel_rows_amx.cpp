#include "shardwise/kernels/panel_rows_amx.h"

#include "shardwise/base/prefetch.h"
#include "shardwise/kernels/tiles.h"

namespace shardwise::kernels::amx {
namespace {

using base::Bf16;

constexpr int64_t kTileLines = kTileColumns / 2;  // of a tile of the weight
constexpr int64_t kSumStride = kPanelOutputs * int64_t{sizeof(float)};
constexpr int64_t kLanes = 16, kVectors = kPanelOutputs / kLanes, kVectorBytes = 64;  // of a line

/// Lines of the weight, and what a pass over them prefetches: its share of as many lines.
struct Lines {
  const uint8_t* first;
  int64_t tiles;
  const uint8_t* ahead;    // null: nothing
  int64_t bytes_per_tile;  // prefetched with each tile

  const uint8_t* tile(int64_t i) const { return first + i * kTileLines * kPanelLineBytes; }
  void prefetch(int64_t i) const {
    if (!ahead) return;
    const uint8_t* bytes = ahead + i * bytes_per_tile;
    for (int64_t byte = 0; byte < bytes_per_tile; byte += 64)
      _mm_prefetch(reinterpret_cast<const char*>(bytes + byte), _MM_HINT_T1);
  }
};

/// Where the sums of four tiles are.
struct Sums {
  float *first, *second, *third, *fourth;

  void load() const {
    _tile_loadd(0, first, kSumStride);
    _tile_loadd(1, second, kSumStride);
    _tile_loadd(2, third, kSumStride);
    _tile_loadd(3, fourth, kSumStride);
  }
  void store() const {
    _tile_stored(0, first, kSumStride);
    _tile_stored(1, second, kSumStride);
    _tile_stored(2, third, kSumStride);
    _tile_stored(3, fourth, kSumStride);
  }
};

/// Adds the products of 32 rows with 32 outputs: four tiles of sums.
void add_two_by_two(float* y, const Bf16* upper, const Bf16* lower, const Lines& w) {
  float* const below = y + kTileRows * kPanelOutputs;
  const Sums sums{y, y + kLanes, below, below + kLanes};
  sums.load();
  for (int64_t i = 0; i < w.tiles; ++i) {
    w.prefetch(i);
    _tile_loadd(4, upper + i * kTileBytes / 2, 64);
    _tile_loadd(6, w.tile(i), kPanelLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w.tile(i) + kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + i * kTileBytes / 2, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  sums.store();
}

/// Adds the products of 16 rows with 64 outputs: four tiles of sums.
void add_one_by_four(float* y, const Bf16* x, const Lines& w) {
  const Sums sums{y, y + kLanes, y + 2 * kLanes, y + 3 * kLanes};
  sums.load();
  for (int64_t i = 0; i < w.tiles; ++i) {
    w.prefetch(i);
    _tile_loadd(4, x + i * kTileBytes / 2, 64);
    _tile_loadd(6, w.tile(i), kPanelLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w.tile(i) + kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, w.tile(i) + 2 * kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, w.tile(i) + 3 * kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(3, 4, 7);
  }
  sums.store();
}

/// Flushes denormal numbers as the tiles do.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | _MM_FLUSH_ZERO_ON | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kDenormalsAreZero = 0x40;
  unsigned saved_;
};

__m512 even(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
__m512 odd(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

/// Adds the products of one row with 64 outputs in the order of a tile: even and odd columns of 32 apart,
/// then together. A row alone is limited by reading the weight, which vectors read faster than tiles.
void add_row(float* y, const Bf16* x, const uint8_t* line, int64_t tiles) {
  const FlushDenormals flush;
  const int64_t ahead = base::prefetch_bytes();
  __m512 sums[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) sums[v] = _mm512_loadu_ps(y + v * kLanes);
  for (int64_t i = 0; i < tiles; ++i, x += kTileBytes / 2) {
    __m512 evens[kVectors], odds[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) evens[v] = odds[v] = _mm512_setzero_ps();
    for (int64_t s = 0; s < kTileLines; ++s, line += kPanelLineBytes) {
      int32_t two;
      __builtin_memcpy(&two, x + 2 * s, sizeof(two));
      const __m512i pair = _mm512_set1_epi32(two);
      for (int64_t v = 0; v < kVectors; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(line + ahead + v * kVectorBytes), _MM_HINT_T1);
        const __m512i weights = _mm512_loadu_si512(line + v * kVectorBytes);
        evens[v] = _mm512_fmadd_ps(even(pair), even(weights), evens[v]);
        odds[v] = _mm512_fmadd_ps(odd(pair), odd(weights), odds[v]);
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = _mm512_add_ps(sums[v], _mm512_add_ps(evens[v], odds[v]));
  }
  for (int64_t v = 0; v < kVectors; ++v) _mm512_storeu_ps(y + v * kLanes, sums[v]);
}

/// Adds full tiles of the weight to all sums: two blocks of rows and half of the outputs at a time, a last
/// block alone with all outputs. Each pass over the weight's columns prefetches its share of `next`, a single
/// one what is shortly ahead.
void add_tiles(float* y, const TiledRows& x, const uint8_t* line, int64_t tiles, const uint8_t* next) {
  if (x.rows == 1) return add_row(y, x.tiles, line, tiles);
  const int64_t row_tiles = tiles_of_rows(x.rows), pairs = row_tiles / 2, passes = 2 * pairs + row_tiles % 2;
  const int64_t share = kTileLines * kPanelLineBytes / passes / 64 * 64;
  Lines w{line, tiles, nullptr, share};
  const auto next_pass = [&](int64_t pass) {
    if (next) w.ahead = passes == 1 ? line + base::prefetch_bytes() : next + pass * tiles * share;
  };
  int64_t pass = 0;
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      next_pass(pass++);
      w.first = line + half * 2 * kVectorBytes;
      const Bf16* upper = x.tiles + 2 * pair * x.row_tile_columns * kTileBytes / 2;
      add_two_by_two(y + 2 * pair * kTileRows * kPanelOutputs + half * 32, upper,
                     upper + x.row_tile_columns * kTileBytes / 2, w);
    }
  }
  if (row_tiles % 2 == 0) return;
  const int64_t last = row_tiles - 1;
  next_pass(pass);
  w.first = line;
  add_one_by_four(y + last * kTileRows * kPanelOutputs, x.tiles + last * x.row_tile_columns * kTileBytes / 2,
                  w);
}

}  // namespace

void pack_rows(Bf16* tiles, const Bf16* x, int64_t x_stride, int64_t rows, int64_t columns) {
  for (int64_t column = 0; column < columns; column += kTileColumns, tiles += kTileBytes / 2) {
    const int64_t count = columns - column < kTileColumns ? columns - column : kTileColumns;
    const auto lanes = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    for (int64_t row = 0; row < rows; ++row)
      _mm512_storeu_si512(tiles + row * kTileColumns,
                          _mm512_maskz_loadu_epi16(lanes, x + row * x_stride + column));
  }
}

void add_lines(float* y, const TiledRows& x, const uint8_t* line, int64_t lines, const uint8_t* next) {
  const Tiles configured(x.rows < kTileRows ? x.rows : kTileRows);
  const int64_t tiles = lines / kTileLines, rest = lines % kTileLines;
  add_tiles(y, x, line, tiles, next);
  if (rest == 0) return;
  alignas(64) uint8_t padded[kTileLines * kPanelLineBytes] = {};
  __builtin_memcpy(padded, line + tiles * kTileLines * kPanelLineBytes, rest * kPanelLineBytes);
  write_to_memory(padded);
  add_tiles(y, {x.tiles + tiles * kTileBytes / 2, x.rows, x.row_tile_columns}, padded, 1,
            /*next=*/nullptr);
}

}  // namespace shardwise::kernels::amx

#include "shardwise/kernels/panel_rows_amx.h"

#include "shardwise/base/prefetch.h"
#include "shardwise/kernels/tiles.h"

namespace shardwise::kernels::amx {
namespace {

using base::Bf16;

constexpr int64_t kTileLines = kTileColumns / 2;  // of a tile of the weight
constexpr int64_t kSumStride = kPanelOutputs * int64_t{sizeof(float)};
constexpr int64_t kVectorBytes = 64;  // of a line: 16 outputs

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

/// Adds the products of 32 rows with 32 outputs: four tiles of sums.
void add_two_by_two(float* y, const Bf16* upper, const Bf16* lower, const Lines& w) {
  float* const below = y + kTileRows * kPanelOutputs;
  _tile_loadd(0, y, kSumStride);
  _tile_loadd(1, y + 16, kSumStride);
  _tile_loadd(2, below, kSumStride);
  _tile_loadd(3, below + 16, kSumStride);
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
  _tile_stored(0, y, kSumStride);
  _tile_stored(1, y + 16, kSumStride);
  _tile_stored(2, below, kSumStride);
  _tile_stored(3, below + 16, kSumStride);
}

/// Adds the products of 16 rows with 64 outputs: four tiles of sums.
void add_one_by_four(float* y, const Bf16* x, const Lines& w) {
  _tile_loadd(0, y, kSumStride);
  _tile_loadd(1, y + 16, kSumStride);
  _tile_loadd(2, y + 32, kSumStride);
  _tile_loadd(3, y + 48, kSumStride);
  for (int64_t i = 0; i < w.tiles; ++i) {
    w.prefetch(i);
    _tile_loadd(4, x + i * kTileBytes / 2, 64);
    _tile_loadd(5, w.tile(i), kPanelLineBytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, w.tile(i) + kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, w.tile(i) + 2 * kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, w.tile(i) + 3 * kVectorBytes, kPanelLineBytes);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, y, kSumStride);
  _tile_stored(1, y + 16, kSumStride);
  _tile_stored(2, y + 32, kSumStride);
  _tile_stored(3, y + 48, kSumStride);
}

/// Adds full tiles of the weight to all sums: two blocks of rows and half of the outputs at a time, a last
/// block alone with all outputs. Each pass over the weight's columns prefetches its share of `next`, a single
/// one what is shortly ahead.
void add_tiles(float* y, const TiledRows& x, const uint8_t* line, int64_t tiles, const uint8_t* next) {
  const int64_t pairs = x.row_tiles / 2, passes = 2 * pairs + x.row_tiles % 2;
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
  if (x.row_tiles % 2 == 0) return;
  const int64_t last = x.row_tiles - 1;
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
    for (int64_t row = 0; row < kTileRows; ++row) {
      const __m512i part =
          row < rows ? _mm512_maskz_loadu_epi16(lanes, x + row * x_stride + column) : _mm512_setzero_si512();
      _mm512_storeu_si512(tiles + row * kTileColumns, part);
    }
  }
}

void add_lines(float* y, const TiledRows& x, const uint8_t* line, int64_t lines, const uint8_t* next) {
  const Tiles configured;
  const int64_t tiles = lines / kTileLines, rest = lines % kTileLines;
  add_tiles(y, x, line, tiles, next);
  if (rest == 0) return;
  alignas(64) uint8_t padded[kTileLines * kPanelLineBytes] = {};
  __builtin_memcpy(padded, line + tiles * kTileLines * kPanelLineBytes, rest * kPanelLineBytes);
  write_to_memory(padded);
  add_tiles(y, {x.tiles + tiles * kTileBytes / 2, x.row_tiles, x.row_tile_columns}, padded, 1,
            /*next=*/nullptr);
}

}  // namespace shardwise::kernels::amx

#include "shardwise/bench/probe_amx.h"

#include "shardwise/bench/random_pair.h"
#include "shardwise/kernels/tiles.h"

namespace shardwise::bench::amx {

float multiply_add_tiles(int64_t iterations) {
  const kernels::amx::Tiles configured;
  alignas(64) uint32_t pairs[16][16];
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t column = 0; column <= row; ++column)  // symmetric, so that the result is positive
      pairs[row][column] = pairs[column][row] = random_pair(16 * row + column);
  kernels::amx::write_to_memory(pairs);
  _tile_loadd(6, pairs, 64);
  _tile_loadd(7, pairs, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  alignas(64) float sums[16][16];
  _tile_stored(5, sums, 64);
  return sums[0][0];
}

}  // namespace shardwise::bench::amx

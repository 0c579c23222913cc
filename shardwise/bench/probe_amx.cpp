#include "shardwise/bench/probe_amx.h"

#include "shardwise/kernels/tiles.h"

namespace shardwise::bench::amx {

float multiply_add_tiles(int64_t iterations) {
  const kernels::amx::Tiles configured;
  alignas(64) float ones[16 * 16];
  for (float& one : ones) one = 1;
  kernels::amx::write_to_memory(ones);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
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
  _tile_stored(5, ones, 64);
  return ones[0];
}

}  // namespace shardwise::bench::amx

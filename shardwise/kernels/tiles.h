// AMX's tile registers. Only for `*_amx.cpp` and `*_tiles.cpp`.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace shardwise::kernels::amx {

/// Makes the compiler write `bytes` to memory: it does not know that tile instructions read it.
[[gnu::always_inline]] inline void write_to_memory(const void* bytes) {
  asm volatile("" : : "r"(bytes) : "memory");
}

/// Makes all eight tiles 16 rows of 64 bytes while this lives; those of x and of sums, 0 to 5, can have fewer
/// rows.
class Tiles {
 public:
  [[gnu::always_inline]] explicit Tiles(int64_t rows = 16) {
    alignas(64) uint8_t config[64] = {/*palette=*/1};
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;  // bytes of a row
      config[48 + tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
    }
    write_to_memory(config);
    _tile_loadconfig(config);
  }
  [[gnu::always_inline]] ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

}  // namespace shardwise::kernels::amx

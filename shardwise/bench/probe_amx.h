// Products of AMX's tiles in registers.
#pragma once
#include <cstdint>

namespace shardwise::bench::amx {

/// The operations of one iteration of `multiply_add_tiles`: six products of 16·32 with 32·16 elements.
inline constexpr int64_t kTileOperations = int64_t{6} * 16 * 32 * 16 * 2;

/// Runs `iterations` of independent tdpbf16ps. Returns a sum, which makes them necessary. Needs AMX.
float multiply_add_tiles(int64_t iterations);

}  // namespace shardwise::bench::amx

// How many rows of logits exist at a time in the loss, so that those of a whole sequence never do. plan/
// counts the same chunks.
#pragma once
#include <cstdint>

namespace shardwise::base {

/// The rows of a chunk; the last may have fewer. Each chunk reads and writes the head's whole main gradient,
/// so that smaller ones cost time; larger ones cost memory.
inline constexpr int64_t kLossChunkRows = 512;

/// Returns into how many chunks `rows` contiguous rows are divided.
inline int64_t loss_chunk_count(int64_t rows) {
  return (rows + kLossChunkRows - 1) / kLossChunkRows;
}

}  // namespace shardwise::base

// Cuts many tensors into chunks, so that one launch on a GPU goes through all of them: a block has one chunk.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace shardwise::kernels::cuda {

/// Elements of a chunk, and threads of its block.
inline constexpr int kChunkElements = 4096, kChunkThreads = 256;

/// The chunks of `tensors` tensors.
struct Chunks {
  const int64_t* first;  // [tensors + 1], on the device: first_chunks
  int tensors;
  int64_t count;  // the last of `first`
};

/// Returns the first chunk of each of these tensors, and the number of chunks. A tensor without elements has
/// none.
inline std::vector<int64_t> first_chunks(std::span<const int64_t> sizes) {
  std::vector<int64_t> first{0};
  for (const int64_t size : sizes)
    first.push_back(first.back() + (size + kChunkElements - 1) / kChunkElements);
  return first;
}

}  // namespace shardwise::kernels::cuda

// The chunk of a block (chunks_cuda.h). For *_cuda.cu.
#pragma once
#include "shardwise/kernels/chunks_cuda.h"
#include "shardwise/kernels/device_code.h"

namespace shardwise::kernels::cuda {

struct Chunk {
  int tensor;
  int64_t begin;  // its first element
};

/// Returns the chunk of the running block.
__device__ inline Chunk chunk_of_block(const Chunks& chunks) {
  const int64_t chunk = blockIdx.x;
  int low = 0, high = chunks.tensors;  // first[low] <= chunk < first[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (chunks.first[middle] <= chunk ? low : high) = middle;
  }
  return {low, (chunk - chunks.first[low]) * kChunkElements};
}

/// Returns the elements that a chunk has of a tensor of n.
__device__ inline int elements_of(const Chunk& chunk, int64_t n) {
  return n - chunk.begin < kChunkElements ? static_cast<int>(n - chunk.begin) : kChunkElements;
}

}  // namespace shardwise::kernels::cuda

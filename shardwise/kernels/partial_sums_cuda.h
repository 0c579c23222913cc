// Sums over rows on a GPU, such as a weight's gradient: blocks sum their rows, then this adds the blocks'
// sums.
#pragma once
#include <cuda_runtime_api.h>

namespace shardwise::kernels::cuda {

/// Adds the blocks' sums to `sum`, in the order of the blocks. Shapes: `sum` [h], `partial` [blocks, h].
void add_partial_sums(float* sum, const float* partial, int blocks, int h, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

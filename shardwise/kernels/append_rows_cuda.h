// Appends a new row of each head to KV caches on a GPU. Internal to cached_attention_cuda.cu.
#pragma once
#include "shardwise/kernels/cached_attention_cuda.h"

namespace shardwise::kernels::cuda {

/// Writes the new keys and values behind the rows of their caches, in int8 as store_rows_ does. T: float,
/// __nv_bfloat16 or __half; S: T or int8_t.
template <class T, class S>
void append_rows(const CachedAttention<T, S>& attention, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

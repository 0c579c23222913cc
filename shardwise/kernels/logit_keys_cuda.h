// Logits on a GPU as integers in the order in which tokens are preferred (logit_keys.h).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardwise::kernels::cuda {

/// Computes keys[i][j] of logits[i][j], as logit_keys. Shapes: `keys`, `logits` [rows, v].
template <class T>
struct LogitKeys {
  int64_t* keys;
  const T* logits;
  int64_t rows;
  int v;
};
/// T: float, __nv_bfloat16 or __half.
template <class T>
void logit_keys(const LogitKeys<T>& keys, cudaStream_t stream);

}  // namespace shardwise::kernels::cuda

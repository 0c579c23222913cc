#include "shardwise/nn/cache.h"

#include <ATen/ops/empty.h>

namespace shardwise::nn {

Cache Cache::empty(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity,
                   at::ScalarType dtype) {
  const std::vector<int64_t> shape{layers, kv_heads, capacity, head_dim};
  return {at::empty(shape, dtype), at::empty(shape, dtype)};
}

int64_t rows_of(const std::vector<CachedRows>& batch) {
  int64_t rows = 0;
  for (const CachedRows& sequence : batch) rows += sequence.rows;
  return rows;
}

}  // namespace shardwise::nn

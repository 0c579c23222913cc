#include "shardwise/nn/cache.h"

#include <ATen/ops/empty.h>

namespace shardwise::nn {

Cache Cache::empty(const base::Range& layers, int64_t kv_heads, int64_t head_dim, int64_t capacity,
                   at::TensorOptions options) {
  const at::Tensor rows = at::empty({layers.size(), 2, kv_heads, capacity, head_dim}, options);
  at::Tensor scales;
  if (rows.scalar_type() == at::kChar)
    scales = at::empty({layers.size(), 2, kv_heads, capacity}, options.dtype(at::kFloat));
  const auto stored = [&](int64_t layer, int64_t which) -> kernels::StoredHeads {
    return {rows[layer][which], scales.defined() ? scales[layer][which] : at::Tensor()};
  };
  Cache cache{.layers = {}, .first_layer = layers.begin};
  for (int64_t layer = 0; layer < layers.size(); ++layer)
    cache.layers.push_back({stored(layer, 0), stored(layer, 1)});
  return cache;
}

int64_t rows_of(const std::vector<CachedRows>& batch) {
  int64_t rows = 0;
  for (const CachedRows& sequence : batch) rows += sequence.rows;
  return rows;
}

}  // namespace shardwise::nn

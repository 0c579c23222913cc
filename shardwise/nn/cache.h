// The keys and values of a text's earlier tokens, so that only new tokens need a forward.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardwise::nn {

/// One text's keys and values on one rank: room for `capacity` tokens in every layer, of the rank's own KV
/// heads, as attention takes them: keys rotated. Cost: 2·layers·k·capacity·d elements.
struct Cache {
  at::Tensor keys, values;  // [layers, k, capacity, d]
  int64_t length = 0;       // tokens held, the same in every layer between two forwards

  static Cache empty(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity,
                     at::ScalarType dtype);
  int64_t capacity() const { return keys.size(2); }
};

/// The next rows of a packed batch, [Σ rows, 1, h], belong to this text and follow what its cache holds. A
/// forward fills the cache; whoever runs it moves `length` on once all layers are done.
struct CachedRows {
  Cache* cache;
  int64_t rows;
};

/// Σ rows.
int64_t rows_of(const std::vector<CachedRows>& batch);

}  // namespace shardwise::nn

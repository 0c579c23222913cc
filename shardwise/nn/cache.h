// The KV cache: keys and values of a sequence's earlier tokens, so that only new tokens need a forward.
#pragma once
#include <cstdint>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/kernels/stored_heads.h"

namespace shardwise::nn {

/// The cached keys (after rotary) and values of one sequence, for one rank's KV heads in every layer.
/// Cost: 2·layers·k·capacity·d elements; in int8 also a float for every d of them.
struct Cache {
  /// What is cached for one layer.
  struct Layer {
    kernels::StoredHeads keys;    // after rotary
    kernels::StoredHeads values;  // of the same tokens
  };
  std::vector<Layer> layers;  // in the order of the forward
  int64_t length = 0;         // cached tokens; equal in every layer between two forwards
  int64_t first_layer = 0;    // the number of layers[0]: above 0 on a later pipeline stage

  /// Allocates a cache for `capacity` tokens in the layers of a range, in the model's dtype or in int8
  /// (at::kChar).
  static Cache empty(const base::Range& layers, int64_t kv_heads, int64_t head_dim, int64_t capacity,
                     at::TensorOptions options);
  /// Returns what is cached for a layer of that range, by its number in the model.
  const Layer& layer(int64_t number) const { return layers.at(size_t(number - first_layer)); }
  /// Returns the number of tokens for which there is room.
  int64_t capacity() const { return layers.front().keys.rows.size(1); }
};

/// Up to this many new rows of a sequence are attended one by one, with the bits that each has alone.
constexpr int64_t kRowsOneByOne = 16;

/// The new rows of one sequence in a packed batch [Σ rows, 1, h]; they follow the tokens in its cache. A
/// forward writes their keys and values to the cache; its caller adds `rows` to `length` once all layers are
/// done.
struct CachedRows {
  Cache* cache;  // of the sequence; not owned
  int64_t rows;  // new tokens
};

/// Returns the sum of `rows` over the batch.
int64_t rows_of(const std::vector<CachedRows>& batch);

}  // namespace shardwise::nn

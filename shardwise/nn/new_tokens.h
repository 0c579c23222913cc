// A few new tokens of each sequence in a batch, as the layers of a forward need them.
#pragma once
#include <span>
#include <vector>

#include "shardwise/kernels/cached_attention.h"
#include "shardwise/nn/cache.h"

namespace shardwise::nn {

/// Returns one layer's cache for each new token, with the tokens before it.
std::vector<kernels::CachedHeads> caches_of(std::span<const CachedRows> sequences, int64_t layer);

/// Returns the position of each new token.
std::vector<int64_t> positions_of(std::span<const CachedRows> sequences);

/// The ids, positions and caches of n new tokens [n, 1]. Those of the next forward replace them in the same
/// memory, so that a graph of a device (kernels/device.h) can be replayed. They are copied to a device at
/// once.
class NewTokens {
 public:
  /// For n tokens, and caches of at most `capacity` tokens each.
  NewTokens(int64_t n, int64_t capacity, at::Device device);

  /// `ids` [n, 1], of the host; each of `sequences` has at most kRowsOneByOne rows, n in all.
  /// Errors: c10::ValueError if they are not, or if a cache's capacity is above that of the constructor.
  void set(const at::Tensor& ids, std::span<const CachedRows> sequences);

  /// Returns the ids [n, 1], on the device.
  const at::Tensor& ids() const { return ids_; }
  /// Returns the positions, and the same [n] on the device.
  const std::vector<int64_t>& positions() const { return positions_; }
  const at::Tensor& position_ids() const { return position_ids_; }
  /// Returns the caches of a layer, by its number in the model.
  const std::vector<kernels::CachedHeads>& caches(int64_t layer) const {
    return layers_.at(size_t(layer - first_layer_));
  }
  /// Returns the table of a layer; on the CPU an empty one.
  kernels::CacheTable table(int64_t layer) const;
  int64_t capacity() const { return capacity_; }

 private:
  void copy_to_device(const at::Tensor& ids);

  int64_t n_, capacity_;
  at::Device device_;
  std::vector<int64_t> positions_;
  int64_t first_layer_ = 0;
  std::vector<std::vector<kernels::CachedHeads>> layers_;  // of the sequences' caches
  at::Tensor on_device_;  // the bytes of ids, positions and the tables of all layers; undefined on the CPU
  at::Tensor ids_, position_ids_, tables_;
};

}  // namespace shardwise::nn

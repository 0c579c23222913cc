// Counter-based random numbers: an element's value depends only on the key and on its index in the unsharded
// tensor. So the numbers do not depend on the sharding, and there is no state to save.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::kernels {

/// Identifies one sequence of random numbers. Source: Salmon et al. 2011 (Philox4x32-10).
struct RandomKey {
  uint64_t value = 0;  // the key's 64 bits

  /// Returns the key of a seed.
  static RandomKey of(uint64_t seed);
  /// Derives a key; different `data` (a layer, a step) give independent sequences.
  RandomKey fold(uint64_t data) const;
  bool operator==(const RandomKey&) const = default;
};

/// Fills a slice of a tensor with normal numbers, bitwise equal to the slice of the unsharded tensor filled
/// with the same key. `pieces` are the ranges of dim `dim` of `global_shape` that `local` holds; if empty,
/// `local` is unsharded. Draws in fp64 and rounds to the dtype. Errors: c10::ValueError if the local shape
/// does not match, or `local` is not contiguous.
void fill_normal_(at::Tensor& local, const std::vector<int64_t>& global_shape, int64_t dim,
                  const std::vector<base::ShardRule::Piece>& pieces, RandomKey key, double mean, double std);

/// Fills a slice like fill_normal_, with numbers that are uniform in (low, high) before rounding.
void fill_uniform_(at::Tensor& local, const std::vector<int64_t>& global_shape, int64_t dim,
                   const std::vector<base::ShardRule::Piece>& pieces, RandomKey key, double low, double high);

}  // namespace shardwise::kernels

// Counter-based random numbers: an element's value depends on the key and its position in the whole tensor
// alone, so every slicing of a tensor sees the same numbers and there is no state to save.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::kernels {

/// Names one stream of random numbers. Source: Salmon et al. 2011 (Philox4x32-10).
struct RandomKey {
  uint64_t value = 0;

  static RandomKey of(uint64_t seed);
  /// Another key; different data (a layer, a step) give unrelated streams.
  RandomKey fold(uint64_t data) const;
  bool operator==(const RandomKey&) const = default;
};

/// Fills a slice of a tensor with what the whole tensor, filled by the same key, would hold there, bit for
/// bit. `pieces` are the runs of dim `dim` of `global_shape` that `local` holds; none: `local` is the whole.
/// Drawn in fp64 and rounded to the dtype.
/// Errors: c10::ValueError when the local shape does not fit, or `local` is not contiguous.
void fill_normal_(at::Tensor& local, const std::vector<int64_t>& global_shape, int64_t dim,
                  const std::vector<base::ShardRule::Piece>& pieces, RandomKey key, double mean, double std);

/// The same, uniform in (low, high) before rounding.
void fill_uniform_(at::Tensor& local, const std::vector<int64_t>& global_shape, int64_t dim,
                   const std::vector<base::ShardRule::Piece>& pieces, RandomKey key, double low, double high);

}  // namespace shardwise::kernels

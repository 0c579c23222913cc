// Deterministic sums over rows that several threads compute: each block of rows has its own partial sum, and
// the partial sums are added at the end. The blocks depend only on the shape, so results are bitwise
// independent of the number of threads.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {

inline constexpr int64_t kBlockRows = 64;

inline int64_t blocks_of(int64_t rows, int64_t block_rows = kBlockRows) {
  return (rows + block_rows - 1) / block_rows;
}

/// The partial sums of the blocks of rows.
class BlockSums {
 public:
  /// `sum` [width] is the accumulator that accumulate_() adds to. If it is undefined, nothing is summed.
  BlockSums(at::Tensor sum, int64_t blocks);

  /// Returns the zero-initialized accumulator of a block; null if `sum` is undefined.
  template <class A>
  A* block(int64_t index) const {
    return sum_.defined() ? elements_<A>(blocks_) + index * blocks_.size(1) : nullptr;
  }

  /// Adds the blocks' partial sums to `sum`, in order.
  void accumulate_() const;

 private:
  at::Tensor sum_, blocks_;
};

}  // namespace shardwise::kernels

// Sums over rows that threads share: each block of rows has a sum of its own, and these are added up at the
// end. The blocks depend on the shape alone, so that the number of threads does not change a bit.
#pragma once
#include <ATen/core/Tensor.h>

#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {

inline constexpr int64_t kBlockRows = 64;

inline int64_t blocks_of(int64_t rows, int64_t block_rows = kBlockRows) {
  return (rows + block_rows - 1) / block_rows;
}

class BlockSums {
 public:
  /// To be added to `sum` [width], an accumulator; an undefined one wants no sums.
  BlockSums(at::Tensor sum, int64_t blocks);

  /// Where a block adds its rows, zero at first; null when no sums are wanted.
  template <class A>
  A* block(int64_t index) const {
    return sum_.defined() ? elements_<A>(blocks_) + index * blocks_.size(1) : nullptr;
  }

  /// Adds the blocks to the sum, in their order.
  void add_up_() const;

 private:
  at::Tensor sum_, blocks_;
};

}  // namespace shardwise::kernels

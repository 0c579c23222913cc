// Scratch memory of a sum over rows, such as a weight's gradient: each block's sums, which a second kernel
// adds.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::cuda {

/// The blocks of a kernel that sums over rows, and the scratch memory of their sums.
class Partial {
 public:
  /// `is_wanted`: whether there are sums; `sums`: the shape of those of one block; `like`: a tensor on the
  /// device.
  Partial(bool is_wanted, int64_t rows, at::IntArrayRef sums, const at::Tensor& like);

  /// Returns the number of blocks: two for each multiprocessor, but no more than rows, and at least 1.
  int blocks() const { return blocks_; }
  /// Returns the scratch memory; null if no sum is wanted.
  float* data() const;

 private:
  int blocks_;
  at::Tensor sums_;
};

}  // namespace shardwise::cuda

// How the rows of a list of tensors are dealt to ranks: the rule by which replicas own optimizer states, and
// by which the gradient norm counts, checkpoints are written and memory is planned. Index arithmetic only.
#pragma once
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::base {

/// The rows (indices of the first dim) of one tensor.
struct TensorRows {
  int64_t rows;          // at least 0
  int64_t row_elements;  // at least 0
};

/// The rows of a list of tensors, dealt to ranks. Every rank has consecutive rows of the list, possibly none.
class RowRuns {
 public:
  /// Cuts the list at the row boundaries nearest to even shares of its elements; of two equally near ones at
  /// the lower one: every share is within a row of an even one. Errors: c10::ValueError if ranks < 1.
  static RowRuns even(const std::vector<TensorRows>& tensors, int ranks);

  /// Returns the rows of tensor number `tensor` that `rank` has.
  Range rows(size_t tensor, int rank) const;
  /// Returns the same partition in elements of the concatenated tensors.
  const Split& elements() const { return elements_; }

 private:
  RowRuns(std::vector<TensorRows> tensors, std::vector<int64_t> begins, Split elements);

  std::vector<TensorRows> tensors_;
  std::vector<int64_t> begins_;  // of each tensor, in elements
  Split elements_;
};

}  // namespace shardwise::base

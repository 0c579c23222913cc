#include "shardwise/base/row_runs.h"

#include <algorithm>

namespace shardwise::base {
namespace {

/// Returns the row boundary that is nearest to the element `target`, which is in the tensor.
int64_t nearest_boundary(int64_t target, int64_t begin, int64_t row_elements) {
  const int64_t below = (target - begin) / row_elements * row_elements + begin;
  return target - below <= below + row_elements - target ? below : below + row_elements;
}

}  // namespace

RowRuns::RowRuns(std::vector<TensorRows> tensors, std::vector<int64_t> begins, Split elements)
    : tensors_(std::move(tensors)), begins_(std::move(begins)), elements_(std::move(elements)) {}

RowRuns RowRuns::even(const std::vector<TensorRows>& tensors, int ranks) {
  std::vector<int64_t> begins;
  int64_t total = 0;
  for (const TensorRows& tensor : tensors) {
    begins.push_back(total);
    total += tensor.rows * tensor.row_elements;
  }
  const Split shares = Split::even("rows of replicas", total, ranks);
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  size_t i = 0;  // the tensor of the cut
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t target = shares.range(rank).end;
    while (i + 1 < tensors.size() && begins[i + 1] <= target) ++i;
    const int64_t end =
        target == total ? total : nearest_boundary(target, begins[i], tensors[i].row_elements);
    sizes.push_back(end - begin);
    begin = end;
  }
  return {tensors, std::move(begins), Split::of_sizes(shares.name(), sizes)};
}

Range RowRuns::rows(size_t tensor, int rank) const {
  const TensorRows& shape = tensors_.at(tensor);
  if (shape.row_elements == 0) return {};
  const Range run = elements_.range(rank);
  const auto row_of = [&](int64_t element) {
    return std::clamp<int64_t>((element - begins_[tensor]) / shape.row_elements, 0, shape.rows);
  };
  return {row_of(run.begin), row_of(run.end)};
}

}  // namespace shardwise::base

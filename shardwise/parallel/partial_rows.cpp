#include "shardwise/parallel/partial_rows.h"

#include <ATen/ops/empty.h>

namespace shardwise::parallel {

using at::Tensor;

PartialRows::PartialRows(at::IntArrayRef sizes, at::ScalarType dtype, const Step& step)
    : step_(step), whole_(step.group.empty(sizes, dtype)) {}

void PartialRows::make(c10::function_ref<void(Tensor& rows, int rank)> write) {
  const int ranks = step_.group.size();
  const bool overlaps = ranks > 1 && step_.overlap == Overlap::on;
  if (overlaps) sum_ = step_.group.begin_reduce_scatter(whole_, step_.sequence);
  for (int i = 0; i < ranks; ++i) {
    const int rank = overlaps ? sum_->nth(i) : i;
    Tensor rows = rows_matrix(whole_, step_.sequence.range(rank));
    write(rows, rank);
    if (overlaps) sum_->made(i);
  }
}

Tensor PartialRows::sum() {
  const comm::Group& group = step_.group;
  if (group.size() == 1) return whole_;
  Tensor own = at::empty({step_.own_sequence().size(), whole_.size(1), whole_.size(2)}, whole_.options());
  if (step_.overlap == Overlap::off && group.has_symmetric()) {
    group.reduce_scatter_out(own, whole_, step_.sequence);
    return own;
  }
  if (!sum_) {
    sum_ = group.begin_reduce_scatter(whole_, step_.sequence);
    for (int i = 0; i < group.size(); ++i) sum_->made(i);
  }
  sum_->finish(own);
  return own;
}

}  // namespace shardwise::parallel

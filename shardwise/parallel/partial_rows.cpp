#include "shardwise/parallel/partial_rows.h"

#include <ATen/ops/empty.h>

namespace shardwise::parallel {

using at::Tensor;

namespace {

Tensor own_rows_like(const Tensor& whole, const Step& step) {
  return at::empty({step.own_sequence().size(), whole.size(1), whole.size(2)}, whole.options());
}

}  // namespace

Tensor scattered_sum(const Tensor& whole, const Step& step) {
  const comm::Group& group = step.group;
  if (group.size() == 1) return whole;
  Tensor own = own_rows_like(whole, step);
  if (group.has_symmetric_heap()) {
    group.reduce_scatter_out(own, whole, step.sequence);
    return own;
  }
  const auto sum = group.reduce_scatter_chunked(whole, step.sequence);
  for (int i = 0; i < group.size(); ++i) sum->chunk_ready(i);
  sum->wait(own);
  return own;
}

PartialRows::PartialRows(at::IntArrayRef sizes, at::ScalarType dtype, const Step& step)
    : step_(step), whole_(step.group.empty(sizes, dtype)) {}

void PartialRows::make(c10::function_ref<void(Tensor& rows, int rank)> write) {
  const int ranks = step_.group.size();
  const bool overlaps = ranks > 1 && step_.overlap == Overlap::on;
  if (overlaps) sum_ = step_.group.reduce_scatter_chunked(whole_, step_.sequence);
  for (int i = 0; i < ranks; ++i) {
    const int rank = overlaps ? sum_->chunk_order(i) : i;
    Tensor rows = rows_matrix(whole_, step_.sequence.range(rank));
    write(rows, rank);
    if (overlaps) sum_->chunk_ready(i);
  }
}

Tensor PartialRows::sum() {
  if (!sum_) return scattered_sum(whole_, step_);
  Tensor own = own_rows_like(whole_, step_);
  sum_->wait(own);
  return own;
}

}  // namespace shardwise::parallel

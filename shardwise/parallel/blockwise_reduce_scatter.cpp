#include "shardwise/parallel/blockwise_reduce_scatter.h"

#include <ATen/ops/empty.h>

namespace shardwise::parallel {

using at::Tensor;

namespace {

Tensor empty_local_rows(const Tensor& full, const Step& step) {
  return at::empty({step.local_sequence().size(), full.size(1), full.size(2)}, full.options());
}

}  // namespace

Tensor reduce_scatter_rows(const Tensor& full, const Step& step) {
  const comm::Group& group = step.group;
  if (group.size() == 1) return full;
  Tensor local = empty_local_rows(full, step);
  if (group.has_symmetric_heap()) {
    group.reduce_scatter_out(local, full, step.sequence);
    return local;
  }
  const auto in_flight = group.reduce_scatter_chunked(full, step.sequence);
  for (int i = 0; i < group.size(); ++i) in_flight->chunk_ready(i);
  in_flight->wait(local);
  return local;
}

BlockwiseReduceScatter::BlockwiseReduceScatter(at::IntArrayRef sizes, at::ScalarType dtype, const Step& step)
    : step_(step), partial_(step.group.empty(sizes, dtype)) {}

void BlockwiseReduceScatter::compute(c10::function_ref<void(Tensor& rows, int rank)> write) {
  const int ranks = step_.group.size();
  const bool overlaps = ranks > 1 && step_.overlap == Overlap::on;
  if (overlaps) in_flight_ = step_.group.reduce_scatter_chunked(partial_, step_.sequence);
  for (int i = 0; i < ranks; ++i) {
    const int rank = overlaps ? in_flight_->chunk_order(i) : i;
    Tensor rows = rows_matrix(partial_, step_.sequence.range(rank));
    write(rows, rank);
    if (overlaps) in_flight_->chunk_ready(i);
  }
}

Tensor BlockwiseReduceScatter::wait() {
  if (!in_flight_) return reduce_scatter_rows(partial_, step_);
  Tensor local = empty_local_rows(partial_, step_);
  in_flight_->wait(local);
  return local;
}

}  // namespace shardwise::parallel

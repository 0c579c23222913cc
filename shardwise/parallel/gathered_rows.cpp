#include "shardwise/parallel/gathered_rows.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace shardwise::parallel {

using at::Tensor;

GatheredRows GatheredRows::gather(const Tensor& shard, const Step& step) {
  GatheredRows rows(step);
  if (step.group.has_symmetric_heap()) {
    rows.shared_ = step.group.share_shard(shard, step.sequence);
  } else if (step.overlap == Overlap::on) {
    rows.in_flight_ = step.group.all_gather_chunked(shard, step.sequence);
    rows.full_ = rows.in_flight_->output();
  } else {
    rows.full_ = step.group.all_gather(shard, step.sequence, kSequence);
  }
  return rows;
}

Tensor GatheredRows::matrix(int rank) const {
  if (in_flight_) in_flight_->wait_chunk(rank);
  if (!shared_) return matrix_of(full_, rank);
  const Tensor shard = shared_->get(rank);
  return shard.view({shard.size(0) * shard.size(1), shard.size(2)});
}

Tensor GatheredRows::matrix(const base::Range& ranks) const {
  std::vector<Tensor> matrices;
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank)
    matrices.push_back(matrix(static_cast<int>(rank)));
  if (matrices.size() == 1) return matrices.front();
  return shared_ ? at::cat(matrices) : matrix_of(full_, ranks);
}

std::vector<int> GatheredRows::chunk_order(const base::Range& ranks) const {
  std::vector<int> order;
  for (int i = 0; i < sequence_.ranks(); ++i) {
    const int rank = chunk_order(i);
    if (ranks.begin <= rank && rank < ranks.end) order.push_back(rank);
  }
  return order;
}

std::vector<base::Range> GatheredRows::runs(int64_t batch) const {
  std::vector<base::Range> runs = base::weight_gradient_ranks(sequence_, batch);
  const auto is_own = [this](const base::Range& ranks) { return step_rank_ < ranks.end; };
  std::ranges::rotate(runs, std::ranges::find_if(runs, is_own));
  return runs;
}

void GatheredRows::record_peer_read(const comm::Group& group) const {
  if (shared_) group.record_peer_read(shared_->get(step_rank_));
}

}  // namespace shardwise::parallel

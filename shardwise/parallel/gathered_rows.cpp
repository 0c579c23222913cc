#include "shardwise/parallel/gathered_rows.h"

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

void GatheredRows::record_peer_read(const comm::Group& group) const {
  if (shared_) group.record_peer_read(shared_->get(step_rank_));
}

}  // namespace shardwise::parallel

#include "shardwise/parallel/rows.h"

#include "shardwise/base/mutation.h"

namespace shardwise::parallel {

using at::Tensor;
using base::Mutation;

Rows Rows::gather(const Tensor& shard, const Step& step) {
  Rows rows(step);
  if (step.group.has_symmetric_heap()) {
    rows.exposed_ = step.group.share_shard(shard, step.sequence);
  } else if (step.overlap == Overlap::on) {
    rows.arriving_ = step.group.all_gather_chunked(shard, step.sequence);
    rows.whole_ = rows.arriving_->output();
  } else {
    rows.whole_ = step.group.all_gather(shard, step.sequence, kSequence);
  }
  return rows;
}

Rows Rows::of_whole(Tensor whole, const Step& step) {
  Rows rows(step);
  rows.whole_ = std::move(whole);
  return rows;
}

Tensor Rows::matrix(int rank) const {
  if (base::mutated(Mutation::permute_gathered_rows)) rank = (rank + 1) % ranks();
  if (arriving_) arriving_->wait_chunk(rank);
  if (!exposed_) return matrix_of(whole_, rank);
  const Tensor shard = exposed_->get(rank);
  return shard.view({shard.size(0) * shard.size(1), shard.size(2)});
}

void Rows::record_peer_read(const comm::Group& group) const {
  if (exposed_) group.record_peer_read(exposed_->get(step_rank_));
}

}  // namespace shardwise::parallel

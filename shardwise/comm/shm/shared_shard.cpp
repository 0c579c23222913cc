#include "shardwise/comm/shm/shared_shard.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace shardwise::comm::shm {

at::Tensor SharedShard::read(int rank) {
  Channel& channel = transport_->channel();
  const Descriptor& theirs = channel.await(*opening_, rank);
  if (rank == channel.rank()) return shard_;
  at::DimVector sizes(shard_.sizes());
  sizes[0] = split_.range(rank).size();
  if (c10::multiply_integers(sizes) == 0) return at::empty(sizes, shard_.options());
  const auto hold = [exposure = shared_from_this()](void*) {};
  return at::from_blob(channel.base(rank) + theirs.offset, sizes, hold, shard_.options());
}

}  // namespace shardwise::comm::shm

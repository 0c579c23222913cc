#include "shardwise/comm/shm/shared_shard.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace shardwise::comm::shm {

at::Tensor SharedShard::get(int rank) {
  Channel& channel = transport_->channel();
  const Descriptor& descriptor = channel.wait_for_arrival(*arrivals_, rank);
  if (rank == channel.rank()) return shard_;
  at::DimVector sizes(shard_.sizes());
  sizes[0] = split_.range(rank).size();
  if (c10::multiply_integers(sizes) == 0) return at::empty(sizes, shard_.options());
  const auto hold = [self = shared_from_this()](void*) {};
  return at::from_blob(channel.base(rank) + descriptor.offset, sizes, hold, shard_.options());
}

}  // namespace shardwise::comm::shm

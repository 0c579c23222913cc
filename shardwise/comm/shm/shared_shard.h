// One rank's view of the shards that all ranks share.
#pragma once
#include <memory>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

class SharedShard final : public PeerShards, public std::enable_shared_from_this<SharedShard> {
 public:
  SharedShard(std::shared_ptr<Transport> transport, std::shared_ptr<Arrivals> arrivals, at::Tensor shard,
              base::Split split)
      : transport_(std::move(transport)),
        arrivals_(std::move(arrivals)),
        shard_(std::move(shard)),
        split_(std::move(split)) {}

  at::Tensor get(int rank) override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Arrivals> arrivals_;
  at::Tensor shard_;
  base::Split split_;
};

}  // namespace shardwise::comm::shm

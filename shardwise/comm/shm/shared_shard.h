// One rank's view of a shard exposed by every rank.
#pragma once
#include <memory>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

class SharedShard final : public PeerShards, public std::enable_shared_from_this<SharedShard> {
 public:
  SharedShard(std::shared_ptr<Transport> transport, std::shared_ptr<Opening> opening, at::Tensor shard,
              base::Split split)
      : transport_(std::move(transport)),
        opening_(std::move(opening)),
        shard_(std::move(shard)),
        split_(std::move(split)) {}

  at::Tensor read(int rank) override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Opening> opening_;
  at::Tensor shard_;
  base::Split split_;
};

}  // namespace shardwise::comm::shm

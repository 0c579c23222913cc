// The shared-memory collectives behind c10d's interface, and what only shared memory has.
#pragma once
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/shm/arena_allocator.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

class Backend final : public comm::Backend {
 public:
  explicit Backend(std::shared_ptr<Transport> transport)
      : comm::Backend(transport),
        transport_(std::move(transport)),
        allocator_(std::make_shared<ArenaAllocator>(transport_->channel().heap())) {}

  const std::shared_ptr<Transport>& transport() const { return transport_; }

  /// Of memory that the group's collectives take in place.
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return allocator_; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<ArenaAllocator> allocator_;
};

}  // namespace shardwise::comm::shm

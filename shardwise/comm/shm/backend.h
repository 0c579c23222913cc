// The shared-memory collectives behind c10d's interface, and what only shared memory has.
#pragma once
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

class Backend final : public comm::Backend {
 public:
  explicit Backend(std::shared_ptr<Transport> transport)
      : comm::Backend(transport), transport_(std::move(transport)) {}

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) override;

 private:
  std::shared_ptr<Transport> transport_;
};

}  // namespace shardwise::comm::shm

#include "shardwise/comm/shm/backend.h"

namespace shardwise::comm::shm {

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return transport_->empty({int64_t(size)}, c10::typeMetaToScalarType(options.dtype()));
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) {
  const bool has_limit = options.timeout.count() > 0;
  transport_->monitored_barrier(has_limit ? options.timeout : transport_->channel().timeout(), name_all);
}

}  // namespace shardwise::comm::shm

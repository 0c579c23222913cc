#include "shardwise/comm/shm/backend.h"

#include <algorithm>

#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {

c10::DataPtr SymmetricHeapAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::kCPU};
  auto block = std::make_unique<HeapBlock>(heap_, int64_t(bytes));
  std::byte* data = block->data();
  const auto free = [](void* context) { delete static_cast<HeapBlock*>(context); };
  return {data, block.release(), free, c10::kCPU};
}

Backend::Pointer Backend::connect(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<Backend>(
      std::make_shared<Transport>(rendezvous_via_store(store, rank, size, timeout), rank, timeout));
}

Backend::Pointer Backend::split(const StorePtr& store, const std::vector<int>& ranks,
                                const OptionsPtr& options) {
  const auto local = std::ranges::find(ranks, rank_);
  if (local == ranks.end()) return nullptr;
  return connect(*store, static_cast<int>(local - ranks.begin()), static_cast<int>(ranks.size()),
                 options->timeout);
}

Backend::Pointer Backend::merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                                const int& size) {
  return connect(*store, rank, size, options->timeout);
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return transport_->empty({int64_t(size)}, c10::typeMetaToScalarType(options.dtype()));
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) {
  const bool has_limit = options.timeout.count() > 0;
  transport_->monitored_barrier(has_limit ? options.timeout : transport_->channel().timeout(), name_all);
}

}  // namespace shardwise::comm::shm

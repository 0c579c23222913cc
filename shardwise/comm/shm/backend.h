// The shared-memory collectives behind c10d's interface, and what only shared memory has.
#pragma once
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/shm/arena_allocator.h"
#include "shardwise/comm/shm/transport.h"

namespace c10d {
class Store;
}

namespace shardwise::comm::shm {

class Backend final : public comm::Backend {
 public:
  explicit Backend(std::shared_ptr<Transport> transport)
      : comm::Backend(transport),
        transport_(std::move(transport)),
        allocator_(std::make_shared<ArenaAllocator>(transport_->channel().heap())) {}

  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using OptionsPtr = c10::intrusive_ptr<Options>;
  using Pointer = c10::intrusive_ptr<c10d::Backend>;

  /// Collective over the ranks that share `store`. Errors: those of rendezvous_via_store.
  static Pointer connect(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

  bool supportsSplitting() const override { return true; }
  /// Collective over `ranks` of this group, ascending: their group, null on the others. Errors: those of
  /// `connect`.
  Pointer split(const StorePtr& store, const std::vector<int>& ranks, const OptionsPtr& options) override;
  /// Collective over the `size` ranks of all groups that are to be one, which have agreed about `rank`.
  Pointer merge(const StorePtr& store, const OptionsPtr& options, const int& rank, const int& size) override;

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

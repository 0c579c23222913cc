// The shared-memory collectives behind c10d's interface, and the functions that only shared memory supports.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>

#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/transport.h"

namespace c10d {
class Store;
}

namespace shardwise::comm::shm {

/// Rendezvous of ranks that share a c10d store: torch gives every process group a store of its own.
/// Collective over them. Each rank stores its node, and rank 0 a random job name and secret, with which the
/// ranks then rendezvous (rendezvous.h). Errors: c10::ValueError if a rank is outside [0, size) or the ranks
/// are on several nodes; base::CommError as rendezvous.
Rendezvous rendezvous_via_store(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

/// The symmetric heap as an allocator for storages that collectives read in place. The storages share the
/// heap's ownership and are freed into its quarantine. Like every c10 allocator, it must outlive storages
/// that are resized. Thread safe.
class SymmetricHeapAllocator final : public c10::Allocator {
 public:
  explicit SymmetricHeapAllocator(std::shared_ptr<Heap> heap) : heap_(std::move(heap)) {}

  /// Returns uninitialized, 64-byte aligned memory; null if `bytes` is 0. Errors: c10::OutOfMemoryError.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  std::shared_ptr<Heap> heap_;
};

class Backend final : public comm::C10dBackend {
 public:
  explicit Backend(std::shared_ptr<Transport> transport)
      : comm::C10dBackend(transport),
        transport_(std::move(transport)),
        allocator_(std::make_shared<SymmetricHeapAllocator>(transport_->channel().heap())) {}

  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using OptionsPtr = c10::intrusive_ptr<Options>;
  using Pointer = c10::intrusive_ptr<c10d::Backend>;

  /// Connects the ranks that share `store`; collective over them. Errors: those of rendezvous_via_store.
  static Pointer connect(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

  bool supportsSplitting() const override { return true; }
  /// Connects the subgroup of `ranks` (ascending); collective over them. Returns null on other ranks. Errors:
  /// those of `connect`.
  Pointer split(const StorePtr& store, const std::vector<int>& ranks, const OptionsPtr& options) override;
  /// Merges groups into one; collective over all `size` ranks, each with its `rank` in the new group.
  Pointer merge(const StorePtr& store, const OptionsPtr& options, const int& rank, const int& size) override;

  const std::shared_ptr<Transport>& transport() const { return transport_; }

  /// Returns the allocator of memory that the group's collectives read in place.
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return allocator_; }

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool name_all) override;

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<SymmetricHeapAllocator> allocator_;
};

}  // namespace shardwise::comm::shm

// The symmetric heap as a c10::Allocator: for storages that torch allocates and collectives read in place.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>

#include "shardwise/comm/shm/heap.h"

namespace shardwise::comm::shm {

/// An allocator whose storages share the heap's ownership and are freed into its quarantine. Like every c10
/// allocator, it must outlive storages that are resized. Thread safe.
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

}  // namespace shardwise::comm::shm

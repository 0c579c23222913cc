// The heap as a c10::Allocator: for storages that torch makes itself, and that collectives are to take in
// place.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>

#include "shardwise/comm/shm/heap.h"

namespace shardwise::comm::shm {

/// Storages share the heap's ownership, and give their memory back to its quarantine. As with every
/// allocator of c10, a storage that is resized later needs it still there. Thread safe.
class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(std::shared_ptr<Heap> heap) : heap_(std::move(heap)) {}

  /// 64-byte aligned, uninitialized; null for no bytes. Errors: c10::OutOfMemoryError.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  std::shared_ptr<Heap> heap_;
};

}  // namespace shardwise::comm::shm

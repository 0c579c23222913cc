#include "tests/support/fake_device/allocator.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "tests/support/emulator/emulator.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/memory.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

void release(void* block) {
  if (!block) return;
  const Lock lock(emulator::mutex());
  Memory::instance().release(block);
}

/// What was released is freed only after the queued kernels, so full memory waits for them.
void* take(size_t bytes) {
  const Lock lock(emulator::mutex());
  Memory& memory = Memory::instance();
  if (void* const block = memory.take(bytes)) return block;
  const Open open;
  void* const block = memory.take(bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "emulated:0 is out of memory: asked for ", bytes,
                   " bytes; ", memory.free_bytes(), " of ", memory.capacity(), " bytes are free");
  return block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, device()};
    void* const block = take(bytes);
    return {block, block, &release, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const Open open;
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

c10::Allocator& allocator() {
  static DeviceAllocator& allocator = *new DeviceAllocator;
  return allocator;
}

void set_capacity(size_t bytes) {
  const Lock lock(emulator::mutex());
  Memory::instance().set_capacity(bytes);
}

size_t peak_bytes() {
  const Lock lock(emulator::mutex());
  return Memory::instance().peak_bytes();
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::DataPtr data = allocator().allocate(bytes);
  if (const size_t kept = std::min(bytes, storage.nbytes()); kept > 0)
    allocator().copy_data(data.get(), storage.data(), kept);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

}  // namespace shardwise::fake_device

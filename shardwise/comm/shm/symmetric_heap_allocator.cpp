#include "shardwise/comm/shm/symmetric_heap_allocator.h"

#include "shardwise/comm/shm/staged_input.h"

namespace shardwise::comm::shm {

c10::DataPtr SymmetricHeapAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::kCPU};
  auto block = std::make_unique<Block>(heap_, int64_t(bytes));
  std::byte* data = block->data();
  const auto free = [](void* context) { delete static_cast<Block*>(context); };
  return {data, block.release(), free, c10::kCPU};
}

}  // namespace shardwise::comm::shm

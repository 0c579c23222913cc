#include "shardwise/comm/shm/symmetric_allocator.h"

#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <unordered_map>

#include "shardwise/comm/shm/backend.h"
#include "shardwise/comm/shm/symmetric_memory.h"

namespace shardwise::comm::shm {
namespace {

using GroupName = std::optional<std::string>;

constexpr const char* kName = "shardwise";
/// torch.distributed's name for the default group.
constexpr const char* kDefaultGroup = "0";

std::shared_ptr<Transport> transport_of(const std::string& group_name) {
  const auto backend = c10d::resolve_process_group(group_name)->getBackend(c10::kCPU);
  const auto* ours = dynamic_cast<Backend*>(backend.get());
  TORCH_CHECK_VALUE(ours != nullptr, "symmetric memory: the backend of the group must be ", kName,
                    "; got group ", group_name, " of backend ", backend->getBackendName());
  return ours->transport();
}

class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  using Handle = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;

  explicit SymmetricAllocator(RunBlocking run_blocking) : run_blocking_(run_blocking) {}

  void* alloc(size_t size, int device_idx, const GroupName& group_name) override;
  void free(void* ptr) override;
  size_t get_alloc_size(void* ptr) override;
  Handle rendezvous(void* ptr, const GroupName& group_name) override;
  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::kCPU; }
  std::string name() override { return kName; }

 private:
  struct Allocation {
    std::shared_ptr<SymmetricBlock> block;
    std::weak_ptr<Transport> home;                             // tensors do not keep their group alive
    std::vector<c10::intrusive_ptr<SymmetricMemory>> handles;  // one per group
  };

  Allocation& find(void* ptr);
  Allocation copy_of(void* ptr);

  RunBlocking run_blocking_;
  std::mutex mutex_;  // not held during a collective, because ranks may be threads
  std::unordered_map<void*, Allocation> allocations_;
};

void* SymmetricAllocator::alloc(size_t size, int, const GroupName& group_name) {
  const std::shared_ptr<Transport> home = transport_of(group_name.value_or(kDefaultGroup));
  auto block = std::make_shared<SymmetricBlock>(home->channel().heap(), size,
                                                c10d::symmetric_memory::get_signal_pad_size());
  void* ptr = block->buffer();
  const std::lock_guard lock(mutex_);
  allocations_.emplace(ptr, Allocation{std::move(block), home, {}});
  return ptr;
}

// Destroys the allocation outside the lock, because it may be the last owner of a group.
void SymmetricAllocator::free(void* ptr) {
  std::unique_lock lock(mutex_);
  const auto removed = allocations_.extract(ptr);
  lock.unlock();
}

size_t SymmetricAllocator::get_alloc_size(void* ptr) {
  const std::lock_guard lock(mutex_);
  return find(ptr).block->bytes();
}

// A second rendezvous of the same group is not collective: it returns the handle of the first.
SymmetricAllocator::Handle SymmetricAllocator::rendezvous(void* ptr, const GroupName& group_name) {
  const Allocation allocation = copy_of(ptr);
  SymmetricGroups groups{allocation.home.lock(), nullptr, run_blocking_};
  TORCH_CHECK_VALUE(groups.home, "rendezvous: the group that the memory was allocated for must still exist");
  groups.group = group_name ? transport_of(*group_name) : groups.home;
  for (const auto& handle : allocation.handles) {
    if (handle->group() == groups.group) return handle;
  }
  const auto handle = symmetric_rendezvous(std::move(groups), allocation.block);
  const std::lock_guard lock(mutex_);
  find(ptr).handles.push_back(handle);
  return handle;
}

SymmetricAllocator::Allocation SymmetricAllocator::copy_of(void* ptr) {
  const std::lock_guard lock(mutex_);
  return find(ptr);
}

SymmetricAllocator::Allocation& SymmetricAllocator::find(void* ptr) {
  const auto found = allocations_.find(ptr);
  TORCH_CHECK_VALUE(found != allocations_.end(),
                    "symmetric memory: the storage must be allocated by symmetric memory; got another one");
  return found->second;
}

}  // namespace

void register_symmetric_memory(RunBlocking run_blocking) {
  if (c10d::symmetric_memory::get_backend(c10::kCPU) == kName) return;
  const auto allocator = c10::make_intrusive<SymmetricAllocator>(run_blocking);
  c10d::symmetric_memory::register_availability(kName, allocator);
  if (!c10d::symmetric_memory::has_allocator(c10::kCPU))
    c10d::symmetric_memory::register_allocator(c10::kCPU, allocator);
}

}  // namespace shardwise::comm::shm

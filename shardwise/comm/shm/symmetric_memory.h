// The symmetric heap as PyTorch's symmetric memory for the CPU: torch.distributed._symmetric_memory and
// c10d::symmetric_memory allocate from it and rendezvous over it (docs/adr/0018).
#pragma once
#include <c10/util/FunctionRef.h>

#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <vector>

#include "shardwise/comm/shm/signals.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// Runs a call that may wait for peers, for programs that must release something meanwhile (Python's GIL).
using RunBlocking = void (*)(c10::function_ref<void()> wait);

/// Registers the allocator with c10d as "shardwise", and as the CPU's allocator unless the CPU already has
/// one. Groups are found by the name under which c10d registered them, and must use this backend. Only the
/// first call has an effect.
void register_symmetric_memory(RunBlocking run_blocking = [](c10::function_ref<void()> wait) { wait(); });

/// One rank's block of symmetric memory: a buffer, followed by the signal pad through which the ranks
/// synchronize their accesses to the buffers (signals.h). It is in the heap of its home group, the
/// group it was allocated for. The last owner frees it into the quarantine.
class SymmetricBlock {
 public:
  /// Allocates an uninitialized buffer and a zeroed pad. Errors: c10::OutOfMemoryError.
  SymmetricBlock(std::shared_ptr<Heap> heap, size_t bytes, size_t pad_bytes)
      : bytes_(bytes), pad_bytes_(pad_bytes), block_(std::move(heap), int64_t(pad_offset() + pad_bytes)) {
    std::memset(block_.data() + pad_offset(), 0, pad_bytes);
  }

  std::byte* buffer() const { return block_.data(); }
  size_t bytes() const { return bytes_; }
  size_t pad_bytes() const { return pad_bytes_; }
  /// Returns the offset of the pad from the start of the buffer.
  size_t pad_offset() const { return (bytes_ + kCacheLine - 1) / kCacheLine * kCacheLine; }

 private:
  static constexpr size_t kCacheLine = 64;

  size_t bytes_, pad_bytes_;
  HeapBlock block_;
};

/// The groups of a rendezvous: the blocks are in the heap of `home`, which contains all ranks of `group`.
struct SymmetricGroups {
  std::shared_ptr<Transport> home, group;
  RunBlocking run_blocking;
};

/// One rank's handle to the blocks that the ranks of a group passed to a rendezvous. All of them can read and
/// write every block in place. Waits and errors are those of signals.h. Peers' buffers are valid while every
/// rank holds its handle or its own tensor; tensors that the handle returns hold neither.
class SymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  /// `block` is this rank's; `buffers` and `pads` are every rank's, in this process's address space.
  SymmetricMemory(SymmetricGroups groups, std::shared_ptr<SymmetricBlock> block, std::vector<void*> buffers,
                  Pads pads);

  const std::shared_ptr<Transport>& group() const { return groups_.group; }

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.addresses.data(); }
  size_t get_buffer_size() override { return block_->bytes(); }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  /// A `timeout_ms` of 0 means the group's timeout, which is also the maximum.
  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, size_t timeout_ms) override;

  int get_rank() override { return groups_.group->rank(); }
  int get_world_size() override { return groups_.group->size(); }
  c10::Device get_device() override { return c10::kCPU; }
  bool world_within_direct_access() override { return true; }

 private:
  SymmetricGroups groups_;
  std::shared_ptr<SymmetricBlock> block_;
  std::vector<void*> buffers_;  // by rank of the group
  Pads pads_;
  Signals signals_;
};

/// Exchanges the blocks of all ranks; collective over the group. All blocks have the same size and are in the
/// home group's heap. Errors: c10::ValueError on all ranks if home groups or pads differ; base::CommError if
/// a rank passes another size or times out.
c10::intrusive_ptr<SymmetricMemory> symmetric_rendezvous(SymmetricGroups groups,
                                                         std::shared_ptr<SymmetricBlock> block);

}  // namespace shardwise::comm::shm

// c10d's symmetric memory: one rank's handle to the blocks that the ranks of a group passed to a rendezvous.
// All of them can read and write every block in place (docs/adr/0018).
#pragma once
#include <memory>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <vector>

#include "shardwise/comm/shm/signals.h"
#include "shardwise/comm/shm/symmetric_allocator.h"
#include "shardwise/comm/shm/symmetric_block.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// The groups of a rendezvous: the blocks are in the heap of `home`, which contains all ranks of `group`.
struct SymmetricGroups {
  std::shared_ptr<Transport> home, group;
  RunBlocking run_blocking;
};

/// The handle. Waits and errors are those of signals.h. Peers' buffers are valid while every rank holds its
/// handle or its own tensor; tensors that the handle returns hold neither.
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

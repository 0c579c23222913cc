// c10d's symmetric memory: one rank's handle to blocks that the ranks of a group have brought to a
// rendezvous, readable and writable by all of them where they lie (docs/adr/0018).
#pragma once
#include <memory>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <vector>

#include "shardwise/comm/shm/signals.h"
#include "shardwise/comm/shm/symmetric_allocator.h"
#include "shardwise/comm/shm/symmetric_block.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// Where the blocks lie and who meets, and waits: `home` has all ranks of `group`, or is the same.
struct Parties {
  std::shared_ptr<Transport> home, group;
  Waiting waiting;
};

/// Waits are those of signals.h, with its errors. Peers' buffers may be used as long as every rank holds its
/// handle or the tensor that it brought; the tensors that the handle gives hold neither.
class SymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  /// `own`: this rank's block; `buffers` and `pads`: every rank's, in this rank's address space.
  SymmetricMemory(Parties parties, std::shared_ptr<SymmetricBlock> own, std::vector<void*> buffers,
                  Pads pads);

  const std::shared_ptr<Transport>& group() const { return parties_.group; }

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.places.data(); }
  size_t get_buffer_size() override { return own_->bytes(); }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  /// `timeout_ms` 0 is the group's timeout, which is the most too.
  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, size_t timeout_ms) override;

  int get_rank() override { return parties_.group->rank(); }
  int get_world_size() override { return parties_.group->size(); }
  c10::Device get_device() override { return c10::kCPU; }
  bool world_within_direct_access() override { return true; }

 private:
  Parties parties_;
  std::shared_ptr<SymmetricBlock> own_;
  std::vector<void*> buffers_;  // by rank of the group
  Pads pads_;
  Signals signals_;
};

/// Collective over the group: every rank brings a block of the same size out of the home's heap.
/// Errors: c10::ValueError on all ranks when homes or pads differ; base::CommError when a rank brings another
/// size, or does not come.
c10::intrusive_ptr<SymmetricMemory> rendezvous(Parties parties, std::shared_ptr<SymmetricBlock> own);

}  // namespace shardwise::comm::shm

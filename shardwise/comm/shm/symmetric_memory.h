// The symmetric heap as PyTorch's symmetric memory for the CPU: torch.distributed._symmetric_memory and
// c10d::symmetric_memory allocate from it and rendezvous over it (docs/adr/0018). The ranks synchronize their
// accesses by signals.
#pragma once
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <vector>

#include "shardwise/comm/shm/channel.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

/// Runs a call that may wait for peers, for programs that must release something meanwhile (Python's GIL).
using RunBlocking = void (*)(c10::function_ref<void()> wait);

/// Registers the allocator with c10d as "shardwise", and as the CPU's allocator unless the CPU already has
/// one. Groups are found by the name under which c10d registered them, and must use this backend. Only the
/// first call has an effect.
void register_symmetric_memory(RunBlocking run_blocking = [](c10::function_ref<void()> wait) { wait(); });

/// The signal pads of the ranks of a group: arrays of words by channel and sender. A word is 1 from when the
/// sender puts its signal until the receiver consumes it, else 0. Channels separate independent signals.
/// Several groups may use the same pads: senders are identified by their rank in the home group
/// (SymmetricBlock). Groups that share two ranks use different channels.
struct Pads {
  std::vector<void*> addresses;  // by rank of the group
  std::vector<int> home_ranks;   // rank in the home group, by rank of the group
  std::vector<Flag*> doorbells;  // of the home group, by rank of the group: all groups sleep on the same ones
  int home_size;
  size_t bytes;  // of each pad; initially zeroed
  int64_t channels() const { return int64_t(bytes / sizeof(uint32_t)) / home_size; }
};

/// The signals of one group: put a signal, wait for a signal, barrier. Called from the thread of the group's
/// collectives. A wait sleeps on the rank's doorbell in the home group, and fails as the group's collectives
/// do (channel.h). A limit of 0 means the group's timeout, which is also the maximum. Errors: c10::ValueError
/// if a rank or channel is out of range, or after the group's shutdown; base::CommError if the peer exited,
/// left, or timed out.
class Signals {
 public:
  using Limit = std::chrono::milliseconds;

  Signals(Channel& group, Pads pads) : group_(group), pads_(std::move(pads)) {}

  /// Puts a signal. Waits only until rank `to` has consumed the previous one.
  void put(int to, int channel, Limit limit);
  /// Waits for a signal of rank `from` and consumes it.
  void wait(int from, int channel, Limit limit);
  void barrier(int channel, Limit limit);

 private:
  using Word = std::atomic_ref<uint32_t>;

  WaitContext start_call(std::string_view op, int peer, int channel, Limit limit);
  Word word(int owner, int sender, int channel) const;
  void put(const WaitContext& context, int channel);
  void consume(const WaitContext& context, int channel);
  void exchange(const WaitContext& context, Word word, uint32_t before, uint32_t after);

  Channel& group_;
  Pads pads_;
  uint64_t calls_ = 0;
};

/// One rank's block of symmetric memory: a buffer, followed by the signal pad through which the ranks
/// synchronize their accesses to the buffers (Signals). It is in the heap of its home group, the
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
/// write every block in place. Waits and errors are those of Signals. Peers' buffers are valid while every
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

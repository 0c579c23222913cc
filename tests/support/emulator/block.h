// A resident block: its threads, shared memory, and the rules of its barriers and warps.
#pragma once
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/emulator/operation.h"
#include "tests/support/emulator/thread.h"

namespace shardwise::emulator {

/// Threads that may go on.
using Threads = std::vector<Thread*>;

class Block {
 public:
  /// Starts block `number` of the kernel; its threads will call `entry`.
  Block(std::shared_ptr<Operation> kernel, unsigned number, int set, Seats& seats, void (*entry)());
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Operation& kernel() const { return *kernel_; }
  bool is_done() const { return live_ == 0; }
  /// Returns all threads, in the order of their numbers.
  Threads threads() const;
  /// Takes note of what a thread waits for, or that it has ended. Returns those that go on with it.
  /// Errors: Fault if a barrier or a warp operation is not reached by all that must.
  Threads arrive(Thread& thread);

  /// Returns the block's memory of this tag, filled with NaNs at the first call.
  void* shared_memory(size_t bytes, const void* tag);
  /// What orders memory in the barrier that comes next, of the block or of a warp.
  SyncPoint& barrier() { return barriers_[generation_ % 2]; }
  SyncPoint& warp_barrier(unsigned warp) { return warps_[warp].barriers[warps_[warp].generation % 2]; }

 private:
  /// Lanes are bits.
  struct Warp {
    unsigned waiting = 0, ended = 0, generation = 0;
    SyncPoint barriers[2];
  };
  struct Shared {
    const void* tag;
    void* memory;
  };

  Threads arrive_at_barrier(Thread& thread);
  Threads arrive_in_warp(Thread& thread);
  void end(Thread& thread);
  void check_same_operation(const Thread& thread, unsigned here) const;

  std::shared_ptr<Operation> kernel_;
  int set_;
  Seats& seats_;
  std::vector<std::unique_ptr<Thread>> threads_;
  size_t live_, waiting_ = 0;
  unsigned generation_ = 0;
  const Thread* first_waiting_ = nullptr;
  SyncPoint barriers_[2];
  std::vector<Warp> warps_;
  std::vector<Shared> shared_;
};

/// Returns "thread (1,0,0) of block (2,0,0)".
std::string name(const Thread& thread);

}  // namespace shardwise::emulator

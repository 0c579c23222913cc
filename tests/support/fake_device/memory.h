// The memory of the fake device.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "tests/support/fake_device/blocks.h"

namespace shardwise::fake_device {

/// One reservation of address space, which the host may touch only while it is open: otherwise a process that
/// reads or writes it dies by SIGSEGV. A new block holds NaNs (all bits are ones). The emulator's mutex
/// guards it.
class Memory {
 public:
  static constexpr size_t kBytes = size_t{4} << 30;  // of the reservation

  /// The memory of this process; never destroyed, because tensors may outlive static objects.
  static Memory& instance();

  /// Returns a block, or null if it does not fit into the capacity.
  void* take(size_t bytes);
  /// Frees a block once the kernels that are queued have run, because they may use it.
  void release(void* block);
  /// Frees what was released. No kernel may be queued.
  void reclaim();
  /// Until keep_none, blocks that are released are kept for a graph.
  void keep_released() { keeps_ = true; }
  /// Returns the blocks that were kept, which are released by another call.
  std::vector<void*> keep_none();

  size_t peak_bytes() const { return blocks_.peak_bytes(); }
  size_t capacity() const { return capacity_; }
  size_t free_bytes() const { return capacity_ - std::min(capacity_, blocks_.used_bytes()); }
  /// Errors: c10::ValueError above kBytes.
  void set_capacity(size_t bytes);

  /// Calls nest.
  void open();
  void close();

 private:
  Memory();
  void protect(size_t begin, size_t end, int protection);
  void grow(size_t end);
  void fill_new();

  char* begin_;
  Blocks blocks_{kBytes};
  size_t capacity_ = kBytes;
  size_t end_ = 0;  // of the pages that were ever used
  int opened_ = 0;
  std::vector<std::span<char>> new_;  // not yet filled
  std::vector<size_t> released_;      // offsets
  bool keeps_ = false;
  std::vector<void*> kept_;
};

/// Opens the memory while it lives.
class Access {
 public:
  Access() { Memory::instance().open(); }
  ~Access() { Memory::instance().close(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

}  // namespace shardwise::fake_device

// One rank's shared memory: an unnamed file of fixed size, mapped by every rank of the group.
//
// The file is sparse. Its owner commits pages before it uses them, so that running out of memory is an error
// at allocation and never a bus error. Commits need no communication with the peers. Forks of the process do
// not inherit the mapping: a stray write of a child is a fault there and leaves the ranks' memory alone.
#pragma once
#include <cstddef>
#include <cstdint>

#include "shardwise/base/fd.h"
#include "shardwise/base/fork.h"
#include "shardwise/comm/shm/control.h"

namespace shardwise::comm::shm {

using base::Fd;

class Region {
 public:
  /// Creates a region for one of `ranks` ranks of this node and commits its control block. Tries to reserve
  /// address space for all ranks' heaps first, and halves the heap until the kernel grants it.
  static Region create(int ranks);
  /// Maps a peer's region. Errors: c10::Error if the file is not a region, can shrink, or cannot be mapped.
  static Region map(Fd file, size_t bytes);

  Region(Region&& other) noexcept;
  Region& operator=(Region&&) = delete;
  ~Region();

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  int file() const { return file_.get(); }
  Control& control() const { return *reinterpret_cast<Control*>(base_); }
  bool contains(const void* p) const { return p >= base_ && p < base_ + bytes_; }

  /// Backs [begin, end) with memory. Errors: c10::OutOfMemoryError with the bytes.
  void commit(size_t begin, size_t end) const;
  /// Closes the file; the mapping remains.
  void close_file() { file_ = Fd(); }

 private:
  Region(Fd file, std::byte* base, size_t bytes) : file_(std::move(file)), base_(base), bytes_(bytes) {}

  Fd file_;
  std::byte* base_;
  size_t bytes_;
  base::ProcessMark process_;  // which has the mapping
};

}  // namespace shardwise::comm::shm

// The allocator of one rank's symmetric heap: best fit with coalescing, and a quarantine for freed blocks
// that peers may still read.
//
// Peers may still read a freed block inside the collectives that this rank has started. The block is reusable
// once the arrival barrier of a later collective has completed: every peer has then returned from the earlier
// ones (docs/adr/0002).
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "shardwise/base/fork.h"
#include "shardwise/comm/shm/region.h"

namespace shardwise::comm::shm {

/// The progress of this rank's collectives: the last one it posted, and the last one whose arrival barrier
/// completed.
struct Progress {
  std::atomic<uint64_t> started{0};
  std::atomic<uint64_t> passed{0};
};

/// One rank's symmetric heap. Thread safe. Tensors share its ownership, so the mapping lives as long as they
/// do. A fork of the process has no part of it: its memory is unmapped there (region.h), and frees do
/// nothing.
class Heap {
 public:
  Heap(Region region, std::shared_ptr<const Progress> progress);

  /// Returns an uninitialized, 64-byte aligned block. Errors: c10::OutOfMemoryError; c10::ValueError in a
  /// fork of the process.
  std::byte* allocate(int64_t bytes);
  /// Frees a block into the quarantine.
  void free(std::byte* block, int64_t bytes);
  /// Frees a block that no collective used and no peer reads any more. It is reusable at once.
  void free_at_once(std::byte* block, int64_t bytes);

  const Region& region() const { return region_; }
  int64_t live_bytes() const;
  int64_t peak_bytes() const;
  void reset_peak();

 private:
  using Offset = size_t;
  struct Quarantined {
    uint64_t started;
    Offset offset;
    size_t bytes;
  };

  void release_passed();
  void insert_free(Offset offset, size_t bytes);
  void erase_free(std::map<Offset, size_t>::iterator block);
  Offset take(size_t bytes);
  void grow(size_t bytes);

  Region region_;
  base::ProcessMark process_;
  std::shared_ptr<const Progress> progress_;
  mutable std::mutex mutex_;
  std::map<Offset, size_t> free_;                     // by offset, for coalescing
  std::set<std::pair<size_t, Offset>> free_by_size_;  // the same blocks, for best fit
  std::deque<Quarantined> quarantine_;                // `started` ascends
  Offset committed_ = kHeapOffset;
  int64_t live_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

/// A block of the symmetric heap. The destructor frees it into the quarantine.
class HeapBlock {
 public:
  HeapBlock() = default;
  HeapBlock(std::shared_ptr<Heap> heap, int64_t bytes)
      : heap_(std::move(heap)), bytes_(bytes), data_(heap_->allocate(bytes)) {}
  HeapBlock(HeapBlock&& other) noexcept
      : heap_(std::move(other.heap_)), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  HeapBlock& operator=(HeapBlock&& other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~HeapBlock() {
    if (data_ != nullptr) heap_->free(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  /// Frees a block that no peer reads any more, without quarantine.
  void free_at_once() {
    if (data_ != nullptr) heap_->free_at_once(std::exchange(data_, nullptr), bytes_);
  }

 private:
  std::shared_ptr<Heap> heap_;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace shardwise::comm::shm

// A collective's input in memory that peers can read: the tensor itself, a copy in the slot, or a copy in a
// heap block.
#pragma once
#include <memory>
#include <utility>

#include "shardwise/comm/shm/heap.h"

namespace shardwise::comm::shm {

/// A block of the symmetric heap. The destructor frees it into the quarantine.
class Block {
 public:
  Block() = default;
  Block(std::shared_ptr<Heap> heap, int64_t bytes)
      : heap_(std::move(heap)), bytes_(bytes), data_(heap_->allocate(bytes)) {}
  Block(Block&& other) noexcept
      : heap_(std::move(other.heap_)), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Block() {
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

struct StagedInput {
  std::byte* data = nullptr;
  bool in_place = false;  // peers read the caller's tensor itself
  Block block;
};

}  // namespace shardwise::comm::shm

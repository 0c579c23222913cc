// One rank's block of symmetric memory: a buffer, followed by the signal pad through which the ranks
// synchronize their accesses to the buffers (signals.h).
#pragma once
#include <cstring>
#include <memory>

#include "shardwise/comm/shm/staged_input.h"

namespace shardwise::comm::shm {

/// A block in the heap of one group, its home group: the group it was allocated for. The last owner frees it
/// into the quarantine.
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
  Block block_;
};

}  // namespace shardwise::comm::shm

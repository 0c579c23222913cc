// What one rank brings to a rendezvous of symmetric memory: a buffer, and behind it the signal pad by which
// the ranks tell each other what they have done to the buffers (signals.h).
#pragma once
#include <cstring>
#include <memory>

#include "shardwise/comm/shm/staged.h"

namespace shardwise::comm::shm {

/// In the heap of one group, its home. Freed, and thereby quarantined, with the last who holds it.
class SymmetricBlock {
 public:
  /// The buffer is uninitialized, the pad zero. Errors: c10::OutOfMemoryError.
  SymmetricBlock(std::shared_ptr<Heap> heap, size_t bytes, size_t pad_bytes)
      : bytes_(bytes), pad_bytes_(pad_bytes), block_(std::move(heap), int64_t(pad_offset() + pad_bytes)) {
    std::memset(block_.data() + pad_offset(), 0, pad_bytes);
  }

  std::byte* buffer() const { return block_.data(); }
  size_t bytes() const { return bytes_; }
  size_t pad_bytes() const { return pad_bytes_; }
  /// From the buffer's begin.
  size_t pad_offset() const { return (bytes_ + kLine - 1) / kLine * kLine; }

 private:
  static constexpr size_t kLine = 64;

  size_t bytes_, pad_bytes_;
  Block block_;
};

}  // namespace shardwise::comm::shm

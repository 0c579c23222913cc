// Which parts of a range of memory are in use.
#pragma once
#include <cstddef>
#include <map>
#include <optional>

namespace shardwise::fake_device {

/// Blocks of a range of `bytes` bytes, by their offsets, each the first free part that is large enough.
class Blocks {
 public:
  static constexpr size_t kAlignment = 256;  // bytes, as cudaMalloc's

  explicit Blocks(size_t bytes) : free_{{0, bytes}} {}

  /// Returns the bytes that a block for `bytes` bytes takes.
  static size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  /// Returns the offset of a new block, or nothing if no free part is large enough.
  std::optional<size_t> take(size_t bytes);
  /// `offset`: of a block in use.
  void give_back(size_t offset);

  size_t used_bytes() const { return used_bytes_; }
  /// Returns the largest used_bytes so far.
  size_t peak_bytes() const { return peak_bytes_; }
  size_t bytes_of(size_t offset) const { return used_.at(offset); }

 private:
  std::map<size_t, size_t> free_, used_;  // bytes by offset; no two free parts touch
  size_t used_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace shardwise::fake_device

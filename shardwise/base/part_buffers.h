// Which parts of a model are in the buffers that its parts use in turn (parallel/sharded_weights.h). Index
// arithmetic only.
#pragma once
#include <array>
#include <cstddef>
#include <optional>

namespace shardwise::base {

/// Buffers for one part each: parts with even and with odd numbers use one each, so that a part and the next
/// one can be present together, and a first part that the last one uses too has a third one.
class PartBuffers {
 public:
  /// The number of buffers.
  static constexpr size_t kCount = 3;

  /// All are empty. `has_first_apart`: the first part has a buffer of its own.
  explicit PartBuffers(bool has_first_apart) : has_first_apart_(has_first_apart) {}

  /// Returns the number of the part's buffer.
  size_t buffer_of(size_t part) const { return has_first_apart_ && part == 0 ? 2 : part % 2; }
  /// Assigns its buffer to the part. Returns false if it had it already.
  bool assign(size_t part) {
    std::optional<size_t>& held = held_[buffer_of(part)];
    if (held == part) return false;
    held = part;
    return true;
  }
  /// Empties all buffers.
  void clear() { held_ = {}; }

 private:
  bool has_first_apart_;
  std::array<std::optional<size_t>, kCount> held_;  // the parts, by buffer
};

}  // namespace shardwise::base

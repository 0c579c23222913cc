#include "tests/support/fake_device/blocks.h"

#include <algorithm>
#include <iterator>

namespace shardwise::fake_device {

std::optional<size_t> Blocks::take(size_t bytes) {
  const size_t size = rounded(bytes);
  const auto part = std::ranges::find_if(free_, [&](const auto& each) { return each.second >= size; });
  if (part == free_.end()) return std::nullopt;
  const auto [offset, available] = *part;
  free_.erase(part);
  if (available > size) free_[offset + size] = available - size;
  used_[offset] = size;
  used_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return offset;
}

void Blocks::give_back(size_t offset) {
  const size_t size = used_.at(offset);
  used_.erase(offset);
  used_bytes_ -= size;
  auto part = free_.emplace(offset, size).first;
  if (const auto next = std::next(part); next != free_.end() && part->first + part->second == next->first) {
    part->second += next->second;
    free_.erase(next);
  }
  if (part == free_.begin()) return;
  if (const auto before = std::prev(part); before->first + before->second == part->first) {
    before->second += part->second;
    free_.erase(part);
  }
}

}  // namespace shardwise::fake_device

#include "shardwise/comm/shm/heap.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::comm::shm {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMinGrowth = size_t{256} << 10, kMaxGrowth = size_t{16} << 20;

size_t block_bytes(int64_t bytes) {
  return std::max<size_t>(1, (size_t(bytes) + kAlignment - 1) / kAlignment) * kAlignment;
}

}  // namespace

Heap::Heap(Region region, std::shared_ptr<const Progress> progress)
    : region_(std::move(region)), progress_(std::move(progress)) {}

// Another thread may have held the lock when the process forked, so a fork must not wait for it.
std::byte* Heap::allocate(int64_t bytes) {
  TORCH_CHECK_VALUE(!process_.is_fork(),
                    "shared memory: only the process that connected a group allocates from its heap; got ",
                    bytes, " bytes in a fork of it; allocate in the parent, or in ordinary memory [SW0577]");
  const std::lock_guard lock(mutex_);
  release_passed();
  const Offset offset = take(block_bytes(bytes));
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return region_.base() + offset;
}

void Heap::free(std::byte* block, int64_t bytes) {
  if (process_.is_fork()) return;
  const std::lock_guard lock(mutex_);
  live_bytes_ -= bytes;
  quarantine_.push_back({progress_->started.load(), Offset(block - region_.base()), block_bytes(bytes)});
}

void Heap::free_at_once(std::byte* block, int64_t bytes) {
  if (process_.is_fork()) return;
  const std::lock_guard lock(mutex_);
  live_bytes_ -= bytes;
  insert_free(Offset(block - region_.base()), block_bytes(bytes));
}

void Heap::release_passed() {
  const uint64_t passed = progress_->passed.load();
  while (!quarantine_.empty() && quarantine_.front().started < passed) {
    insert_free(quarantine_.front().offset, quarantine_.front().bytes);
    quarantine_.pop_front();
  }
}

void Heap::insert_free(Offset offset, size_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    erase_free(next++);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase_free(previous);
    }
  }
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Heap::erase_free(std::map<Offset, size_t>::iterator block) {
  free_by_size_.erase({block->second, block->first});
  free_.erase(block);
}

Heap::Offset Heap::take(size_t bytes) {
  auto fit = free_by_size_.lower_bound({bytes, 0});
  if (fit == free_by_size_.end()) {
    grow(bytes);
    fit = free_by_size_.lower_bound({bytes, 0});
  }
  const auto [size, offset] = *fit;
  erase_free(free_.find(offset));
  if (size > bytes) insert_free(offset + bytes, size - bytes);
  return offset;
}

// Commits more of the region after the last block, in steps that double with the heap.
void Heap::grow(size_t bytes) {
  const bool ends_free = !free_.empty() && free_.rbegin()->first + free_.rbegin()->second == committed_;
  const size_t missing = bytes - (ends_free ? free_.rbegin()->second : 0);
  const size_t room = region_.bytes() - committed_;
  TORCH_CHECK_WITH(OutOfMemoryError, missing <= room, "shared memory: the heap of ",
                   region_.bytes() - kHeapOffset, " bytes is full; asked for ", bytes, " bytes with ",
                   live_bytes_, " in use [SW0377]");
  const size_t step = std::clamp(committed_ - kHeapOffset, kMinGrowth, kMaxGrowth);
  const size_t growth = std::min(room, (missing + step - 1) / step * step);
  region_.commit(committed_, committed_ + growth);
  committed_ += growth;
  insert_free(committed_ - growth, growth);
}

int64_t Heap::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

int64_t Heap::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

void Heap::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_bytes_ = live_bytes_;
}

}  // namespace shardwise::comm::shm

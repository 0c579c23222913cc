#include "tests/support/fake_device/memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace shardwise::fake_device {
namespace {

constexpr size_t kPage = 4096;  // bytes

}  // namespace

Memory& Memory::instance() {
  static Memory& memory = *new Memory;
  return memory;
}

Memory::Memory() {
  void* const memory =
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  TORCH_CHECK(memory != MAP_FAILED, "fake_device: cannot reserve ", kBytes, " bytes of address space");
  begin_ = static_cast<char*>(memory);
}

void Memory::protect(size_t begin, size_t end, int protection) {
  if (begin == end) return;
  TORCH_INTERNAL_ASSERT(mprotect(begin_ + begin, end - begin, protection) == 0);
}

/// Adds the pages below `end` to those that are opened and closed.
void Memory::grow(size_t end) {
  const size_t pages_end = (end + kPage - 1) / kPage * kPage;
  if (pages_end <= end_) return;
  if (opened_ > 0) protect(end_, pages_end, PROT_READ | PROT_WRITE);
  end_ = pages_end;
}

void Memory::fill_new() {
  for (const auto& block : new_) std::memset(block.data(), 0xff, block.size());
  new_.clear();
}

void* Memory::take(size_t bytes) {
  if (bytes > capacity_ || Blocks::rounded(bytes) > free_bytes()) return nullptr;
  const auto offset = blocks_.take(bytes);
  if (!offset) return nullptr;
  const size_t size = blocks_.bytes_of(*offset);
  grow(*offset + size);
  new_.emplace_back(begin_ + *offset, size);
  if (opened_ > 0) fill_new();
  return begin_ + *offset;
}

std::vector<void*> Memory::keep_none() {
  keeps_ = false;
  return std::exchange(kept_, {});
}

void Memory::release(void* block) {
  if (keeps_) {
    kept_.push_back(block);
    return;
  }
  released_.push_back(static_cast<char*>(block) - begin_);
}

void Memory::reclaim() {
  for (const size_t offset : released_) blocks_.give_back(offset);
  released_.clear();
}

void Memory::set_capacity(size_t bytes) {
  TORCH_CHECK_VALUE(bytes <= kBytes, "fake_device: the capacity must be at most ", kBytes, " bytes; got ",
                    bytes);
  capacity_ = bytes;
}

void Memory::open() {
  if (opened_++ == 0) protect(0, end_, PROT_READ | PROT_WRITE);
  fill_new();
}

void Memory::close() {
  if (--opened_ == 0) protect(0, end_, PROT_NONE);
}

}  // namespace shardwise::fake_device

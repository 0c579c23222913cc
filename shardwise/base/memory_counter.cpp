#include "shardwise/base/memory_counter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace shardwise::base {
namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

void add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

// In front of every block, for a deleter is told the pointer only: tensors' contexts stay simple (context ==
// data), which raw_allocate and copy-on-write need.
struct Prefix {
  void* start;  // of what malloc gave
  int64_t bytes;
};

constexpr size_t kHugePage = size_t{2} << 20;

// Where a block begins and how much room it takes. Weights are read from end to end for every token: huge
// pages are fewer translations, an eighth more of them a second. A page is huge only when all of it is asked
// for before any of it is touched, and malloc writes beside its blocks: so large blocks have pages of their
// own, the last one too unless that is an eighth more memory.
struct Placing {
  size_t alignment, room;
  explicit Placing(size_t bytes) : alignment(c10::gAlignment), room(bytes) {
    if (bytes < 2 * kHugePage) return;
    alignment = kHugePage;
    const size_t whole_pages = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    if (whole_pages - bytes <= bytes / 8) room = whole_pages;
  }
};

// malloc and an alignment by hand: glibc's posix_memalign does not find a freed block of the same request
// again (it asks for the alignment on top), so each step's tensors would be faulted in anew.
void* aligned_block(size_t bytes) {
  const Placing placing(bytes);
  size_t room = placing.room + placing.alignment;
  void* start = std::malloc(sizeof(Prefix) + room);
  TORCH_CHECK_WITH(OutOfMemoryError, start != nullptr, "allocate: out of memory; asked for ", bytes,
                   " bytes");
  void* data = static_cast<char*>(start) + sizeof(Prefix);
  std::align(placing.alignment, placing.room, data, room);
  static_cast<Prefix*>(data)[-1] = {start, static_cast<int64_t>(bytes)};
  // A wish that the system may leave unheard.
  if (placing.alignment == kHugePage) ::madvise(data, placing.room / kHugePage * kHugePage, MADV_HUGEPAGE);
  return data;
}

void release(void* data) {
  if (data == nullptr) return;
  const Prefix& prefix = static_cast<Prefix*>(data)[-1];
  live.fetch_sub(prefix.bytes, std::memory_order_relaxed);
  std::free(prefix.start);
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    TORCH_CHECK(bytes <= size_t{1} << 62, "allocate: must fit the address space; got ", bytes, " bytes");
    void* data = aligned_block(bytes);
    add(static_cast<int64_t>(bytes));
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    default_copy_data(dst, src, bytes);
  }
};

}  // namespace

void install_memory_counter() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    // Never deleted: tensors in statics are freed through it after main.
    static auto* const counting = new CountingAllocator;
    c10::SetCPUAllocator(counting, /*priority=*/100);
  });
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);  // M_MMAP_THRESHOLD cannot be raised above 32 MiB
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

int64_t live_bytes() {
  return live.load(std::memory_order_relaxed);
}

int64_t peak_bytes() {
  return peak.load(std::memory_order_relaxed);
}

void reset_peak() {
  peak.store(live_bytes(), std::memory_order_relaxed);
}

}  // namespace shardwise::base

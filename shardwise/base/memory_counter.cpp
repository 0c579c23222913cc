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

// Stored before every block, because a deleter gets only the pointer: tensors' contexts stay simple (context
// == data), as raw_allocate and copy-on-write require.
struct Prefix {
  void* start;  // the pointer that malloc returned
  int64_t bytes;
};

constexpr size_t kHugePage = size_t{2} << 20;

// Alignment and padded size of a block. Decoding reads all weights for every token, and huge pages need fewer
// address translations: an eighth more tokens per second. The kernel uses a huge page only if the whole page
// is advised before its first access, and malloc writes its headers next to the blocks. So large blocks get
// whole pages, including the last page unless that adds more than an eighth to the memory.
struct BlockLayout {
  size_t alignment, size;
  explicit BlockLayout(size_t bytes) : alignment(c10::gAlignment), size(bytes) {
    if (bytes < 2 * kHugePage) return;
    alignment = kHugePage;
    const size_t whole_pages = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    if (whole_pages - bytes <= bytes / 8) size = whole_pages;
  }
};

// Aligns malloc's blocks by hand: glibc's posix_memalign adds the alignment to the request, so it does not
// reuse a freed block of the same request, and each step's tensors would be faulted in again.
void* aligned_block(size_t bytes) {
  const BlockLayout layout(bytes);
  size_t room = layout.size + layout.alignment;
  void* start = std::malloc(sizeof(Prefix) + room);
  TORCH_CHECK_WITH(OutOfMemoryError, start != nullptr, "allocate: out of memory; requested ", bytes,
                   " bytes [SW0375]");
  void* data = static_cast<char*>(start) + sizeof(Prefix);
  std::align(layout.alignment, layout.size, data, room);
  static_cast<Prefix*>(data)[-1] = {start, static_cast<int64_t>(bytes)};
  // Only a hint: the kernel may ignore it.
  if (layout.alignment == kHugePage) ::madvise(data, layout.size / kHugePage * kHugePage, MADV_HUGEPAGE);
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
    TORCH_CHECK(bytes <= size_t{1} << 62, "allocate: must fit the address space; got ", bytes,
                " bytes [SW0378]");
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
    // Never deleted: static tensors are freed through it after main.
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

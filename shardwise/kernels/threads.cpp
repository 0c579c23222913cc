// The only file compiled with OpenMP, which callers of at::parallel_for need; uses torch's thread pool.
#include "shardwise/kernels/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizer looks these names up.
// Suppresses only races whose top frame is ATen's parallel_for wrapper, which reads arguments that libgomp
// passes to the threads. Also ignores accesses from libtorch, which is not instrumented: TSan does not see
// its locks.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:ATen/ParallelOpenMP.h\nrace_top:ATen/Parallel-inl.h\n";
}
extern "C" const char* __tsan_default_options();
extern "C" [[gnu::weak]] const char* __tsan_default_options() {  // the tests have more options
  return "ignore_noninstrumented_modules=1";
}
// NOLINTEND(bugprone-reserved-identifier)
#define SHARDWISE_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define SHARDWISE_NO_TSAN
#endif

namespace shardwise::kernels {
namespace {

/// Declares libgomp's happens-before edges to TSan, because libgomp is not instrumented: from the start of a
/// parallel region to its parts, and from its parts to its end. Races between parts of a region, and between
/// ranks, are still reported.
class RegionOrder {
 public:
#ifdef __SANITIZE_THREAD__
  void release() {
    __tsan_release(this);
  }
  void acquire() {
    __tsan_acquire(this);
  }
#else
  void release() {}
  void acquire() {}
#endif
};

}  // namespace

void for_ranges(int64_t count, int64_t elements_per_unit, c10::function_ref<void(int64_t, int64_t)> f) {
  constexpr int64_t kElementsPerPart = 32768;
  const int64_t grain = std::max<int64_t>(1, kElementsPerPart / std::max<int64_t>(1, elements_per_unit));
  RegionOrder order;
  order.release();
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) SHARDWISE_NO_TSAN {
    order.acquire();
    f(begin, end);
    order.release();
  });
  order.acquire();
}

}  // namespace shardwise::kernels

// The one file compiled with OpenMP, which at::parallel_for needs at its call; the pool is torch's own.
#include "shardwise/kernels/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

// NOLINTBEGIN(bugprone-reserved-identifier): names that the sanitizer looks for.
// The only suppressions there are: what ATen's own wrapper reads of a region's arguments, which libgomp hands
// over, as the reading frame itself and not as a caller of ours. And of libtorch, which is not instrumented,
// what it copies or compares by the C library is not judged either: its locks would be missing.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:ATen/ParallelOpenMP.h\nrace_top:ATen/Parallel-inl.h\n";
}
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1";
}
// NOLINTEND(bugprone-reserved-identifier)
#define SHARDWISE_HANDED_OVER __attribute__((no_sanitize("thread")))
#else
#define SHARDWISE_HANDED_OVER
#endif

namespace shardwise::kernels {
namespace {

/// Tells the thread sanitizer what libgomp, which is not instrumented, guarantees: all that was done before a
/// parallel region begins is seen in it, and all that is done in it is seen when it has ended. Races between
/// the parts of a region, and between ranks, stay visible.
class RegionOrder {
 public:
#ifdef __SANITIZE_THREAD__
  void done() {
    __tsan_release(this);
  }
  void seen() {
    __tsan_acquire(this);
  }
#else
  void done() {}
  void seen() {}
#endif
};

}  // namespace

void for_ranges(int64_t count, int64_t elements_per_unit, c10::function_ref<void(int64_t, int64_t)> f) {
  constexpr int64_t kElementsPerPart = 32768;
  const int64_t grain = std::max<int64_t>(1, kElementsPerPart / std::max<int64_t>(1, elements_per_unit));
  RegionOrder order;
  order.done();
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) SHARDWISE_HANDED_OVER {
    order.seen();
    f(begin, end);
    order.done();
  });
  order.seen();
}

}  // namespace shardwise::kernels

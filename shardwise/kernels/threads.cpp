// The one file compiled with OpenMP, which at::parallel_for needs at its call; the pool is torch's own.
#include "shardwise/kernels/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace shardwise::kernels {

void for_ranges(int64_t count, int64_t elements_per_unit, c10::function_ref<void(int64_t, int64_t)> f) {
  constexpr int64_t kElementsPerPart = 32768;
  const int64_t grain = std::max<int64_t>(1, kElementsPerPart / std::max<int64_t>(1, elements_per_unit));
  at::parallel_for(0, count, grain, f);
}

}  // namespace shardwise::kernels

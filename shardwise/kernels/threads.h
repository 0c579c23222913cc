// Parallel loops on ATen's intra-op threads.
#pragma once
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace shardwise::kernels {

/// Calls f(begin, end) in parallel for ranges that partition [0, count). A range has at least about 32768
/// elements of work, where one index is `elements_per_unit`. Results must not depend on the partition.
void for_ranges(int64_t count, int64_t elements_per_unit, c10::function_ref<void(int64_t, int64_t)> f);

}  // namespace shardwise::kernels

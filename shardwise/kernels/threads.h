// Loops shared by ATen's intra-op threads.
#pragma once
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace shardwise::kernels {

/// f(begin, end) over parts of [0, count); no part is smaller than about 32768 elements' work when a unit is
/// `elements_per_unit`. Results must not depend on how the range is parted.
void for_ranges(int64_t count, int64_t elements_per_unit, c10::function_ref<void(int64_t, int64_t)> f);

}  // namespace shardwise::kernels

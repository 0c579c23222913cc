// How a reduction joins the ranks' elements. No library headers: comm/shm/reduce_isa.cpp reads this.
#pragma once
#include <cstdint>

namespace shardwise::comm {

/// average takes floating-point dtypes, bit_* take integers and bool. On bool, sum and max are "or", product
/// and min "and".
enum class Reduce : uint8_t { sum, product, min, max, average, bit_and, bit_or, bit_xor };
inline constexpr int kReductions = 8;

const char* name(Reduce reduce);

}  // namespace shardwise::comm

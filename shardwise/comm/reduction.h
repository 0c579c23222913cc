// The reductions of a collective. No library headers: comm/reduce_isa.cpp includes this.
#pragma once
#include <cstdint>

namespace shardwise::comm {

/// average supports floating-point dtypes; bit_* support integers and bool. On bool, sum and max are "or",
/// product and min "and".
enum class Reduce : uint8_t { sum, product, min, max, average, bit_and, bit_or, bit_xor };
/// The number of reductions.
inline constexpr int kReductions = 8;

const char* name(Reduce reduce);  // defined in descriptor.cpp

}  // namespace shardwise::comm

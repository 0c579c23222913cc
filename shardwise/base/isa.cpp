#include "shardwise/base/isa.h"

namespace shardwise::base {
namespace {

// The features are those of SHARDWISE_ISA_FLAGS_* in cmake/room.cmake.
Isa detect() {
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx2 && has_avx512) return Isa::avx512;
  return has_avx2 ? Isa::avx2 : Isa::baseline;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

bool has_avx512_bf16() {
  return best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
}

}  // namespace shardwise::base

#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {
namespace {

Isa detect() {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
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

}  // namespace shardwise::kernels

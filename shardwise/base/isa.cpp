#include "shardwise/base/isa.h"

#include <c10/util/Exception.h>

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "shardwise/base/environment.h"

namespace shardwise::base {
namespace {

constexpr Isa kAll[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16, Isa::amx};

/// Returns whether the processor has AMX's tiles of bf16 and int8. Clang 18 does not know them by name.
bool has_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool is_known = __get_cpuid_count(/*leaf=*/7, /*subleaf=*/0, &eax, &ebx, &ecx, &edx) != 0;
  return is_known && (~edx & (kBf16 | kTile | kInt8)) == 0;
}

/// Asks Linux to save the registers of the tiles for this process, which it does only on request; all threads
/// share the permission. Source: Linux, Documentation/arch/x86/xstate.rst.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The features are those of SHARDWISE_ISA_FLAGS_* in cmake/room.cmake.
Isa detect() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
    return Isa::baseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512_vnni;
  return has_tiles() && may_use_tiles() ? Isa::amx : Isa::avx512_bf16;
}

Isa limited() {
  const auto limit = env_text("SHARDWISE_MAX_ISA");
  if (!limit) return processor_isa();
  for (const Isa isa : kAll)
    if (*limit == name_of(isa)) return std::min(isa, processor_isa());
  TORCH_CHECK_VALUE(false, "environment: SHARDWISE_MAX_ISA must be baseline, avx2, avx512, avx512_vnni, ",
                    "avx512_bf16 or amx; got ", *limit, " [SW0705]");
}

}  // namespace

Isa best_isa() {
  static const Isa isa = limited();
  return isa;
}

Isa loops_isa() {
  return std::min(best_isa(), Isa::avx512);
}

Isa processor_isa() {
  static const Isa isa = detect();
  return isa;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_vnni:
      return "avx512_vnni";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::amx:
      return "amx";
  }
  return "";
}

}  // namespace shardwise::base

// The instruction sets for which inner loops are compiled (cmake/room.cmake), and the processor's features
// that select among them at run time. No library header: isa sources include this.
#pragma once

namespace shardwise::base {

/// An instruction set for which inner loops are compiled; each contains those before it. `*_isa.cpp` are
/// compiled for the first three, `*_vnni.cpp`, `*_bf16.cpp`, `*_amx.cpp` and `*_tiles.cpp` for the others.
/// amx is AMX's tiles of bf16 and int8, which Linux must permit the process to use.
enum class Isa { baseline, avx2, avx512, avx512_vnni, avx512_bf16, amx };

/// Returns the widest instruction set that this processor supports, or a lower one that SHARDWISE_MAX_ISA
/// names: baseline, avx2, avx512, avx512_vnni, avx512_bf16 or amx.
/// Errors: c10::ValueError if SHARDWISE_MAX_ISA is none of these.
Isa best_isa();

/// Returns the instruction set of the `*_isa.cpp` loops in use: best_isa(), at most avx512.
Isa loops_isa();

/// Returns the widest instruction set that this processor supports. The first call asks Linux for AMX's
/// tiles.
Isa processor_isa();

/// Returns the name of `isa`, as in SHARDWISE_MAX_ISA.
const char* name_of(Isa isa);

}  // namespace shardwise::base

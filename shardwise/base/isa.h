// The instruction sets for which inner loops (`*_isa.cpp`) are compiled (cmake/room.cmake), and the
// processor's features that select among them at run time. No library header: isa sources include this.
#pragma once

namespace shardwise::base {

/// An instruction set for which the inner loops are compiled.
enum class Isa { baseline, avx2, avx512 };

/// Returns the widest instruction set that this processor supports.
Isa best_isa();

/// Returns true if this processor has AVX-512 and its products of bf16 pairs.
bool has_avx512_bf16();

}  // namespace shardwise::base

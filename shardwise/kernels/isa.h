// Run-time dispatch by instruction set. Inner loops (`*_isa.cpp`) are compiled once per instruction set, see
// cmake/room.cmake; this file selects the build for this processor.
//
// An op's loops are a table of function pointers per element type. `<op>_isa.h` declares it with
// SHARDWISE_PER_ISA, and `<op>_isa.cpp` defines it and ends with SHARDWISE_INSTANTIATE.
#pragma once
#include "shardwise/kernels/element.h"

namespace shardwise::kernels {

/// An instruction set for which the inner loops are compiled.
enum class Isa { baseline, avx2, avx512 };

/// Returns the widest instruction set that this processor supports.
Isa best_isa();

/// Declares Loops<T> name<T>() for each instruction set, and a `name<T>(isa)` that selects one of them.
#define SHARDWISE_PER_ISA(Loops, name)                               \
  namespace baseline {                                               \
  template <class T>                                                 \
  Loops<T> name();                                                   \
  }                                                                  \
  namespace avx2 {                                                   \
  template <class T>                                                 \
  Loops<T> name();                                                   \
  }                                                                  \
  namespace avx512 {                                                 \
  template <class T>                                                 \
  Loops<T> name();                                                   \
  }                                                                  \
  template <class T>                                                 \
  Loops<T> name(Isa isa = best_isa()) {                              \
    if (isa == Isa::avx512) return avx512::name<T>();                \
    return isa == Isa::avx2 ? avx2::name<T>() : baseline::name<T>(); \
  }

#define SHARDWISE_INSTANTIATE(Loops, name) \
  template Loops<double> name<double>();   \
  template Loops<float> name<float>();     \
  template Loops<Bf16> name<Bf16>();       \
  template Loops<Fp16> name<Fp16>();

}  // namespace shardwise::kernels

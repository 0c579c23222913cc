// Inner loops are compiled three times (`*_isa.cpp`, see cmake/room.cmake); this picks the build that this
// processor runs, once.
//
// An op's loops are a table of function pointers per element type, declared in `<op>_isa.h` by
// SHARDWISE_PER_ISA and defined in `<op>_isa.cpp`, which ends with SHARDWISE_INSTANTIATE.
#pragma once
#include "shardwise/kernels/element.h"

namespace shardwise::kernels {

enum class Isa { baseline, avx2, avx512 };

/// The widest one that this processor has.
Isa best_isa();

/// Loops<T> name<T>() in each build, and `name<T>()` for the chosen one.
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

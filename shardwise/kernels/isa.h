// Run-time dispatch by instruction set (base/isa.h), and the element types of the inner loops.
//
// An op's loops are a table of function pointers per element type. `<op>_isa.h` declares it with
// SHARDWISE_PER_ISA, and `<op>_isa.cpp` defines it and ends with SHARDWISE_INSTANTIATE.
#pragma once
#include "shardwise/base/element.h"
#include "shardwise/base/isa.h"

namespace shardwise::kernels {

using base::Accumulator;
using base::best_isa;
using base::Bf16;
using base::Fp16;
using base::Isa;

/// Declares Loops<T> name<T>() for each instruction set, and a `name<T>(isa)` that selects one of them.
#define SHARDWISE_PER_ISA(Loops, name)                                     \
  namespace baseline {                                                     \
  template <class T>                                                       \
  Loops<T> name();                                                         \
  }                                                                        \
  namespace avx2 {                                                         \
  template <class T>                                                       \
  Loops<T> name();                                                         \
  }                                                                        \
  namespace avx512 {                                                       \
  template <class T>                                                       \
  Loops<T> name();                                                         \
  }                                                                        \
  template <class T>                                                       \
  Loops<T> name(base::Isa isa = base::best_isa()) {                        \
    if (isa >= base::Isa::avx512) return avx512::name<T>();                \
    return isa == base::Isa::avx2 ? avx2::name<T>() : baseline::name<T>(); \
  }

#define SHARDWISE_INSTANTIATE(Loops, name)       \
  template Loops<double> name<double>();         \
  template Loops<float> name<float>();           \
  template Loops<base::Bf16> name<base::Bf16>(); \
  template Loops<base::Fp16> name<base::Fp16>();

}  // namespace shardwise::kernels

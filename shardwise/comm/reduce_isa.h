// The interface between reduce.cpp and reduce_isa.cpp, which is compiled once per instruction set. No library
// headers.
#pragma once
#include <cstdint>

#include "shardwise/comm/reduction.h"

namespace shardwise::comm {

/// Reads the `sources` of all `ranks`, then writes all `copies` targets. A target may be one of the sources.
using ReduceKernel = void (*)(const void* const* sources, int ranks, void* const* targets, int copies,
                              int64_t n);

enum class Element { f64, f32, bf16, f16, i64, i32, i16, i8, u8, boolean };
inline constexpr int kElements = 10;

/// Kernels by operation and element; null if the operation does not support the element.
struct ReduceKernels {
  ReduceKernel table[kReductions][kElements];
};

namespace baseline {
extern const ReduceKernels reduce_kernels;
}
namespace avx2 {
extern const ReduceKernels reduce_kernels;
}
namespace avx512 {
extern const ReduceKernels reduce_kernels;
}

}  // namespace shardwise::comm

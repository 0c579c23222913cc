// The element types of the inner loops: plain structs, because isa files share no code with the library.
#pragma once
#include <cstdint>

namespace shardwise::kernels {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

/// The type in which sums of T are accumulated.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

}  // namespace shardwise::kernels

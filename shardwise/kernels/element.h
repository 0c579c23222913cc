// The element types as the inner loops see them: plain structs, because isa files share no code with the
// library.
#pragma once
#include <cstdint>

namespace shardwise::kernels {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

/// What sums over T are kept in.
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

// Vectors of the instruction set's width, for loops that the compiler does not vectorize well. Only for
// `*_isa.cpp`, see loops.h.
#pragma once
#include <type_traits>
#include <utility>

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class A>
inline constexpr int64_t kVectorLanes = kVectorBytes / sizeof(A);

template <class A>
struct VectorOf {
  typedef A type __attribute__((vector_size(kVectorBytes), aligned(sizeof(A)), may_alias));
};
/// The elements of a vector register, at any alignment.
template <class A>
using Vector = typename VectorOf<A>::type;

/// Returns the first `count` elements widened, and zeros.
template <class T>
inline Vector<base::Accumulator<T>> load_part(const T* from, int64_t count) {
  Vector<base::Accumulator<T>> result = {};
  for (int64_t lane = 0; lane < count; ++lane) result[lane] = widen(from[lane]);
  return result;
}

/// Returns a vector of elements, widened.
template <class T>
inline Vector<base::Accumulator<T>> load(const T* from) {
  using A = base::Accumulator<T>;
  if constexpr (std::is_same_v<T, A>) {
    Vector<A> result;
    __builtin_memcpy(&result, from, sizeof(result));
    return result;
  } else if constexpr (std::is_same_v<T, base::Bf16>) {
    using Halves [[gnu::vector_size(kVectorBytes / 2)]] = uint16_t;
    using Words [[gnu::vector_size(kVectorBytes)]] = uint32_t;
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    return reinterpret_cast<Vector<A>>(__builtin_convertvector(halves, Words) << 16);
  } else {
    return load_part(from, kVectorLanes<A>);
  }
}

template <class A>
inline void store(A* to, Vector<A> vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

/// Returns the sum of the lanes, by pairwise summation.
template <class V, size_t... I>
inline auto sum_of_lanes(V vector, std::index_sequence<I...>) {
  const auto half = __builtin_shufflevector(vector, vector, I...) +
                    __builtin_shufflevector(vector, vector, (I + sizeof...(I))...);
  if constexpr (sizeof...(I) == 2) {
    return half[0] + half[1];
  } else {
    return sum_of_lanes(half, std::make_index_sequence<sizeof...(I) / 2>());
  }
}
template <class A>
inline A sum_of_lanes(Vector<A> vector) {
  if constexpr (kVectorLanes<A> == 2) {
    return vector[0] + vector[1];
  } else {
    return sum_of_lanes(vector, std::make_index_sequence<kVectorLanes<A> / 2>());
  }
}

}  // namespace shardwise::kernels::SHARDWISE_ISA

// Vectors of the instruction set's width, for loops that the compiler does not vectorize well. Only for
// `*_isa.cpp`, see loops.h.
#pragma once
#include <type_traits>
#include <utility>

#include "shardwise/kernels/loops.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

/// Returns a vector of int8 elements, widened.
inline Vector<float> load_bytes(const int8_t* from) {
#if defined(__AVX512F__)
  __m128i bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  Vector<float> result;
  for (int lane = 0; lane < kVectorLanes<float>; ++lane) result[lane] = from[lane];
  return result;
#endif
}

/// As load and load_part, for elements of A's narrower types or int8.
template <class A, class S>
inline Vector<A> load_part_as(const S* from, int64_t count) {
  if constexpr (std::is_same_v<S, int8_t>) {
    Vector<A> result = {};
    for (int64_t lane = 0; lane < count; ++lane) result[lane] = from[lane];
    return result;
  } else {
    return load_part(from, count);
  }
}

template <class A, class S>
inline Vector<A> load_as(const S* from) {
  if constexpr (std::is_same_v<S, int8_t> && std::is_same_v<A, float>) {
    return load_bytes(from);
  } else if constexpr (std::is_same_v<S, int8_t>) {
    return load_part_as<A>(from, kVectorLanes<A>);
  } else {
    return load(from);
  }
}
template <class A>
inline void store(A* to, Vector<A> vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

/// Returns the sum of a vector's two halves.
template <class V, size_t... I>
inline auto half_sum(V vector, std::index_sequence<I...>) {
  return __builtin_shufflevector(vector, vector, I...) +
         __builtin_shufflevector(vector, vector, (I + sizeof...(I))...);
}

/// Returns the sum of the lanes, by pairwise summation.
template <class V, size_t... I>
inline auto sum_of_lanes(V vector, std::index_sequence<I...>) {
  const auto half = half_sum(vector, std::index_sequence<I...>());
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

/// Stores the sum of a vector's quads of lanes.
template <class V>
inline void store_sum_of_quads(float* to, V vector) {
  constexpr size_t lanes = sizeof(V) / sizeof(float);
  if constexpr (lanes == 4) {
    __builtin_memcpy(to, &vector, sizeof(vector));
  } else {
    store_sum_of_quads(to, half_sum(vector, std::make_index_sequence<lanes / 2>()));
  }
}

/// Returns the vector with element `first` + l of `a` and of `b` in turn, l = 0, 1, of every four lanes; or
/// both of `a` and both of `b`.
template <int first, bool in_turn, class V, size_t... I>
inline V mixed(V a, V b, std::index_sequence<I...>) {
  constexpr size_t lanes = sizeof...(I);
  if constexpr (in_turn) {
    return __builtin_shufflevector(a, b, (I / 4 * 4 + first + I % 4 / 2 + I % 2 * lanes)...);
  } else {
    return __builtin_shufflevector(a, b, (I / 4 * 4 + first + I % 2 + I % 4 / 2 * lanes)...);
  }
}

/// Stores the sums of the lanes of four vectors, by pairwise summation.
template <class A>
inline void store_sums_of_lanes(A* to, const Vector<A> (&of)[4]) {
  if constexpr (std::is_same_v<A, float>) {
    constexpr auto lanes = std::make_index_sequence<kVectorLanes<A>>();
    const auto pairs = [=](Vector<A> a, Vector<A> b) {
      return mixed<0, true>(a, b, lanes) + mixed<2, true>(a, b, lanes);
    };
    const Vector<A> low = pairs(of[0], of[1]), high = pairs(of[2], of[3]);
    store_sum_of_quads(to, mixed<0, false>(low, high, lanes) + mixed<2, false>(low, high, lanes));
  } else {
    for (int i = 0; i < 4; ++i) to[i] = sum_of_lanes<A>(of[i]);
  }
}

}  // namespace shardwise::kernels::SHARDWISE_ISA

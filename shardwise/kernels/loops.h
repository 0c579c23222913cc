// Building blocks of the inner loops: exp, reductions. Only for `*_isa.cpp`; everything is in
// the namespace of the instruction set that it is compiled for.
//
// Written for auto-vectorization: no branches, no calls, reductions over a fixed number of lanes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "shardwise/base/element.h"

namespace shardwise::kernels::SHARDWISE_ISA {

using base::narrow;
using base::widen;

/// Computes e^x = 2^n · e^r, |r| <= ln2/2, with the polynomial of Cephes' expf. Accurate to 2 ulp for results
/// from 2^-126 to 2^127.5; returns 0 below and infinity above.
inline float exp_of(float x) {
  constexpr float kShift = 12582912.0f + 127.0f;  // adding 1.5 · 2^23 rounds to an integer in the low bits
  const float shifted = x * 1.44269504088896341f + kShift;
  const float n = shifted - kShift;
  float r = x - n * 0.693359375f;  // ln2 in two parts, the first with trailing zeros
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits are n + 127, the exponent field of 2^n.
  const float result = p * __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23);
  return x < -87.336f ? 0.0f : x > 88.376f ? __builtin_inff() : result;
}
inline double exp_of(double x) {
  return __builtin_exp(x);
}

inline float log_of(float x) {
  return __builtin_logf(x);
}
inline double log_of(double x) {
  return __builtin_log(x);
}

inline float sqrt_of(float x) {
  return __builtin_sqrtf(x);
}
inline double sqrt_of(double x) {
  return __builtin_sqrt(x);
}

/// Number of accumulators, two cache lines: independent dependency chains, and partial sums that are short
/// enough to be accurate.
template <class A>
inline constexpr int kLanes = 128 / sizeof(A);

/// Returns sums[0] + ... + sums[2 · width − 1] by pairwise summation.
template <int width, class A>
inline A total(A* sums) {
  for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  if constexpr (width > 1) return total<width / 2>(sums);
  return sums[0];
}

/// Returns Σ term(i), i < n, in an order that depends only on n. Calls `ahead(i)`, e.g. to prefetch, before
/// the lanes from i on.
template <class A, class Term, class Ahead>
inline A sum_of(int64_t n, Term term, Ahead ahead) {
  constexpr int lanes = kLanes<A>;
  A parts[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    ahead(i);
    for (int lane = 0; lane < lanes; ++lane) parts[lane] += term(i + lane);
  }
  for (int lane = 0; i + lane < n; ++lane) parts[lane] += term(i + lane);
  return total<lanes / 2>(parts);
}
template <class A, class Term>
inline A sum_of(int64_t n, Term term) {
  return sum_of<A>(n, term, [](int64_t) {});
}

template <class A>
struct TwoSums {
  A first, second;
};

/// Returns the sums of two terms in one pass, each as sum_of.
template <class A, class First, class Second>
inline TwoSums<A> two_sums_of(int64_t n, First first, Second second) {
  constexpr int lanes = kLanes<A>;
  A firsts[lanes] = {}, seconds[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) firsts[lane] += first(i + lane);
    for (int lane = 0; lane < lanes; ++lane) seconds[lane] += second(i + lane);
  }
  for (int lane = 0; i + lane < n; ++lane) {
    firsts[lane] += first(i + lane);
    seconds[lane] += second(i + lane);
  }
  return {total<lanes / 2>(firsts), total<lanes / 2>(seconds)};
}

/// Returns the maximum of term(i), i < n; -infinity if n is 0.
template <class A, class Term>
inline A max_of(int64_t n, Term term) {
  constexpr int lanes = kLanes<A>;
  A largest[lanes];
  for (int lane = 0; lane < lanes; ++lane) largest[lane] = -__builtin_inff();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) {
      const A x = term(i + lane);
      largest[lane] = x > largest[lane] ? x : largest[lane];
    }
  }
  for (; i < n; ++i) {
    const A x = term(i);
    largest[0] = x > largest[0] ? x : largest[0];
  }
  for (int lane = 1; lane < lanes; ++lane)
    largest[0] = largest[lane] > largest[0] ? largest[lane] : largest[0];
  return largest[0];
}

}  // namespace shardwise::kernels::SHARDWISE_ISA

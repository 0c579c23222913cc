// The 16-bit floating-point types, the type in which sums are accumulated, and the conversions between them.
//
// NaN, as in torch (c10::BFloat16 and c10::Half): `narrow` maps every NaN to one, 0x7fc0 in bf16, and 0x7e00
// with the NaN's sign in fp16. `widen` keeps the sign and the payload.
//
// For sources that are compiled per instruction set too: no library header and no function that is emitted
// out of line. Without branches, so that loops vectorize.
#pragma once
#include <cstdint>

namespace shardwise::base {

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

/// Returns the bits of a float, or the float with these bits.
[[gnu::always_inline]] constexpr uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
[[gnu::always_inline]] constexpr float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Converts an element to its accumulator's type, exactly.
[[gnu::always_inline]] constexpr double widen(double x) {
  return x;
}
[[gnu::always_inline]] constexpr float widen(float x) {
  return x;
}
[[gnu::always_inline]] constexpr float widen(Bf16 x) {
  return float_of(uint32_t{x.bits} << 16);
}
/// Scales subnormals into the normal range by an exact product, which avoids a branch.
[[gnu::always_inline]] constexpr float widen(Fp16 x) {
  const uint32_t sign = (uint32_t{x.bits} & 0x8000u) << 16;
  const uint32_t magnitude = (uint32_t{x.bits} & 0x7fffu) << 13;
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  return float_of((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite) | sign);  // Inf and NaN
}

/// Converts a result to an element, rounded to nearest even.
template <class T>
constexpr T narrow(Accumulator<T> x);
template <>
[[gnu::always_inline]] constexpr double narrow<double>(double x) {
  return x;
}
template <>
[[gnu::always_inline]] constexpr float narrow<float>(float x) {
  return x;
}
template <>
[[gnu::always_inline]] constexpr Bf16 narrow<Bf16>(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return Bf16{static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
}
/// Rounds results below 2^-14 by adding a constant whose last place is 2^-24.
template <>
[[gnu::always_inline]] constexpr Fp16 narrow<Fp16>(float x) {
  const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // rounds to 2^16 or above
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return Fp16{static_cast<uint16_t>(half | sign)};
}

}  // namespace shardwise::base

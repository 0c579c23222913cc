// Conversions of 16-bit elements, against c10's.
#include "shardwise/base/element.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

namespace shardwise::base::element_test {
namespace {

constexpr uint32_t kQuiet = 0x400000;  // the bit that makes a float NaN quiet

template <class T, class Library>
void expect_same_narrowing(uint32_t bits) {
  const float x = float_of(bits);
  ASSERT_EQ(narrow<T>(x).bits, Library(x).x) << std::hex << bits;
}

template <class T, class Library>
void check_conversions() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = widen(T{static_cast<uint16_t>(bits)});
    const float expected = Library(static_cast<uint16_t>(bits), Library::from_bits());
    // c10 makes fp16's signaling NaNs quiet.
    const uint32_t ignored = x != x ? kQuiet : 0;
    ASSERT_EQ(bits_of(x) | ignored, bits_of(expected) | ignored) << std::hex << bits;
    ASSERT_NO_FATAL_FAILURE((expect_same_narrowing<T, Library>(bits_of(x))));
  }
  // Every exponent and every 16-bit pattern's neighborhood: halfway points, the floats next to them, others.
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u,
                               0x8001u, 0xcccdu, 0xefffu, 0xf000u, 0xffffu}) {
      ASSERT_NO_FATAL_FAILURE((expect_same_narrowing<T, Library>(high << 16 | low)));
    }
  }
}

TEST(Element, Bf16ConvertsAsInTorch) {
  check_conversions<Bf16, c10::BFloat16>();
}

TEST(Element, Fp16ConvertsAsInTorch) {
  check_conversions<Fp16, c10::Half>();
}

TEST(Element, EveryNaNBecomesTheSame) {
  for (const uint32_t nan : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0x7f812345u}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      EXPECT_EQ(narrow<Bf16>(float_of(nan | sign)).bits, 0x7fc0);
      EXPECT_EQ(narrow<Fp16>(float_of(nan | sign)).bits, 0x7e00 | sign >> 16);
    }
  }
}

// constexpr, so a conversion that overflows or shifts out of range does not compile.
static_assert(narrow<Bf16>(1.0f).bits == 0x3f80 && narrow<Fp16>(65519.0f).bits == 0x7bff &&
              narrow<Fp16>(65520.0f).bits == 0x7c00 && narrow<Fp16>(0x1p-25f).bits == 0 &&
              narrow<Fp16>(0x1.8p-25f).bits == 1 && widen(Fp16{1}) == 0x1p-24f);

}  // namespace
}  // namespace shardwise::base::element_test

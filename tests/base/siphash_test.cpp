// SipHash-2-4 against the vector of its paper and those of its authors' implementation, which OpenSSL's
// agrees with
// (`openssl mac -macopt hexkey:000102030405060708090a0b0c0d0e0f -macopt size:8 -in FILE SIPHASH`).
#include "shardwise/base/siphash.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise::base::siphash_test {
namespace {

constexpr std::array<uint64_t, 2> kKey = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};

/// Returns the bytes 0, 1, 2, ...
std::string counting(size_t length) {
  std::string text;
  for (size_t i = 0; i < length; ++i) text += static_cast<char>(i);
  return text;
}

TEST(SipHash, EqualsTheVectorOfThePaper) {
  EXPECT_EQ(siphash(kKey, counting(15)), 0xa129ca6149be45e5ull);
}

TEST(SipHash, EqualsTheVectorsOfOtherLengths) {
  EXPECT_EQ(siphash(kKey, counting(0)), 0x726fdb47dd0e0e31ull);
  EXPECT_EQ(siphash(kKey, counting(1)), 0x74f839c593dc67fdull);
  EXPECT_EQ(siphash(kKey, counting(7)), 0xab0200f58b01d137ull);
  EXPECT_EQ(siphash(kKey, counting(8)), 0x93f5f5799a932462ull);
  EXPECT_EQ(siphash(kKey, counting(9)), 0x9e0082df0ba9e4b0ull);
  EXPECT_EQ(siphash(kKey, counting(16)), 0x3f2acc7f57c29bdbull);
  EXPECT_EQ(siphash(kKey, counting(63)), 0x958a324ceb064572ull);
}

TEST(SipHash, DependsOnTheKeyAndOnTheLength) {
  EXPECT_NE(siphash({kKey[0] ^ 1, kKey[1]}, "x"), siphash(kKey, "x"));
  EXPECT_NE(siphash({kKey[0], kKey[1] ^ (1ull << 63)}, "x"), siphash(kKey, "x"));
  EXPECT_NE(siphash(kKey, std::string(8, '\0')), siphash(kKey, std::string(9, '\0')));
}

}  // namespace
}  // namespace shardwise::base::siphash_test

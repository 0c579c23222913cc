#include "shardwise/base/siphash.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace shardwise::base {
namespace {

constexpr int kRoundsPerWord = 2, kFinalRounds = 4;

/// The state of the paper, v0 to v3.
struct State {
  uint64_t v0, v1, v2, v3;

  explicit State(const std::array<uint64_t, 2>& key)
      : v0(key[0] ^ 0x736f6d6570736575ull),
        v1(key[1] ^ 0x646f72616e646f6dull),
        v2(key[0] ^ 0x6c7967656e657261ull),
        v3(key[1] ^ 0x7465646279746573ull) {}

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    rounds(kRoundsPerWord);
    v0 ^= word;
  }
};

}  // namespace

uint64_t siphash(const std::array<uint64_t, 2>& key, std::string_view message) {
  static_assert(std::endian::native == std::endian::little);  // of the paper's words
  State state(key);
  size_t done = 0;
  for (; done + sizeof(uint64_t) <= message.size(); done += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, message.data() + done, sizeof(word));
    state.absorb(word);
  }
  uint64_t last = uint64_t(message.size()) << 56;
  std::memcpy(&last, message.data() + done, message.size() - done);  // at most 7 bytes: below the length
  state.absorb(last);
  state.v2 ^= 0xff;
  state.rounds(kFinalRounds);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace shardwise::base

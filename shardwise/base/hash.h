// FNV-1a with one step per 64-bit value instead of per byte. The hashes are the same on every machine: ranks
// compare them, and random keys are derived from hashed names. Source: Fowler, Noll, Vo.
#pragma once
#include <cstdint>
#include <string_view>

namespace shardwise::base {

inline constexpr uint64_t kHashBegin = 0xcbf29ce484222325ull;

/// Returns `hash` updated with `value`. The order of the values matters.
constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x100000001b3ull;
}

constexpr uint64_t hash_of(std::string_view text) {
  uint64_t hash = kHashBegin;
  for (const char c : text) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace shardwise::base

// SipHash-2-4, a keyed hash of short messages: whoever does not know the key can neither find it from hashes
// nor compute the hash of another message. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF",
// 2012.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace shardwise::base {

/// Returns the hash of `message`. The first word of `key` has the first 8 bytes of the paper's key.
uint64_t siphash(const std::array<uint64_t, 2>& key, std::string_view message);

}  // namespace shardwise::base

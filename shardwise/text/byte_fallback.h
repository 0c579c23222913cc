// The tokens <0x00> to <0xFF> of single bytes, for characters that a vocabulary does not have.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::text {

/// Returns the token of a byte, such as <0x4A>.
std::string byte_fallback_token(uint8_t byte);

/// Returns the byte of a token, whose digits may be lower case, as decoders accept; nullopt for other tokens.
std::optional<uint8_t> byte_of_fallback_token(std::string_view token);

}  // namespace shardwise::text

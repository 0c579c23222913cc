// GPT-2's mapping of bytes to printable characters, in which byte-level vocabularies write tokens.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::text {

/// Returns the character of each byte, in UTF-8. Source: openai/gpt-2 encoder.py, bytes_to_unicode.
const std::array<std::string, 256>& byte_characters();

/// Returns the bytes that a token encodes; nullopt if one of its characters does not map to a byte.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace shardwise::text

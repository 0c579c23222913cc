// GPT-2's way of writing any bytes as printable characters, in which byte-level vocabularies spell tokens.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::text {

/// The character that stands for each byte, in UTF-8. Source: openai/gpt-2 encoder.py, bytes_to_unicode.
const std::array<std::string, 256>& byte_characters();

/// The bytes that a token spells; none where a character of it stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace shardwise::text

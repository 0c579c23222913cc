#include "shardwise/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace shardwise::base {
namespace {

constexpr std::string_view kCode = " [SW0000]";

bool is_code(std::string_view text) {
  const auto fits = [](char c, char form) { return form == '0' ? c >= '0' && c <= '9' : c == form; };
  return std::ranges::equal(text, kCode, fits);
}

/// Returns the first code in `text`, with the space before it; empty if it has none.
std::string first_code(std::string_view text) {
  for (size_t i = 0; i + kCode.size() <= text.size(); ++i) {
    if (is_code(text.substr(i, kCode.size()))) return std::string(text.substr(i, kCode.size()));
  }
  return {};
}

/// Returns the bytes of the character at the start of `text`: 0 if it is not valid UTF-8 (RFC 3629, section
/// 4).
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xc2 && first < 0xe0   ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool is_overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool is_surrogate = first == 0xed && byte(1) >= 0xa0, is_too_large = first == 0xf4 && byte(1) >= 0x90;
  return is_overlong || is_surrogate || is_too_large ? 0 : bytes;
}

/// Whether the valid character at the start of `text` is a control character of ASCII or of Latin-1.
bool is_control(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  return byte(0) < 0x20 || byte(0) == 0x7f || (byte(0) == 0xc2 && byte(1) < 0xa0);
}

std::string describe(const CommError::Where& where, const std::string& what) {
  return with_code_last(fmt::format("{} #{}: {}; rank {} waited {:.2f} s of {:.0f} s", where.op,
                                    where.sequence, what, where.rank, where.elapsed_s, where.limit_s));
}

}  // namespace

CommError::CommError(Where where, const std::string& what)
    : c10::DistBackendError(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                            describe(where, what)),
      where_(std::move(where)) {}

CollectiveError::CollectiveError(const std::string& what)
    : c10::ValueError(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what) {}

std::string without_code(std::string text) {
  for (std::string code = first_code(text); !code.empty(); code = first_code(text)) {
    text.erase(text.find(code), code.size());
  }
  return text;
}

std::string with_code_last(const std::string& text) {
  return without_code(text) + first_code(text);
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t bytes = character_bytes(text), taken = std::max<size_t>(bytes, 1);
    if (bytes > 0 && !is_control(text)) {
      shown += text.substr(0, taken);
    } else {
      for (const char c : text.substr(0, taken))
        shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(taken);
  }
  return shown;
}

std::string one_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error ? c10_error->what_without_backtrace() : error.what();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return printable(text);
}

}  // namespace shardwise::base

#include "shardwise/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <string_view>

#include "shardwise/base/utf8.h"

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

/// Whether the valid character at the start of `text` is a control character of ASCII or of Latin-1.
bool is_control(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  return byte(0) < 0x20 || byte(0) == 0x7f || (byte(0) == 0xc2 && byte(1) < 0xa0);
}

std::string describe(const CommError::Where& where, const std::string& what) {
  const double limit_s = std::round(where.limit_s * 100) / 100;  // it may be what is left of a timeout
  return with_code_last(fmt::format("{} #{}: {}; rank {} waited {:.2f} s of {} s", where.op, where.sequence,
                                    what, where.rank, where.elapsed_s, limit_s));
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
    const Utf8Unit unit = utf8_unit(text, 0);
    const std::string_view bytes = text.substr(0, unit.length);
    if (unit.is_character && !is_control(bytes)) {
      shown += bytes;
    } else {
      for (const char c : bytes) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(bytes.size());
  }
  return shown;
}

std::string shortened(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kMore = "...";
  std::string shown = printable(text.substr(0, max_bytes + 1));  // escapes only lengthen it
  if (shown.size() <= max_bytes) return shown;
  size_t end = max_bytes - kMore.size();
  while (end > 0 && is_utf8_continuation(static_cast<uint8_t>(shown[end]))) --end;  // within a character
  return shown.substr(0, end).append(kMore);
}

std::string one_line(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "out of memory";
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error ? c10_error->what_without_backtrace() : error.what();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return printable(text);
}

}  // namespace shardwise::base

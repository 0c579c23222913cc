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

std::string one_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error ? c10_error->what_without_backtrace() : error.what();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace shardwise::base

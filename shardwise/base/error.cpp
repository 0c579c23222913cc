#include "shardwise/base/error.h"

#include <fmt/format.h>

namespace shardwise::base {
namespace {

std::string describe(const CommError::Where& where, const std::string& what) {
  return fmt::format("{} #{}: {}; rank {} waited {:.2f} s of {:.0f} s", where.op, where.sequence, what,
                     where.rank, where.elapsed_s, where.limit_s);
}

}  // namespace

CommError::CommError(Where where, const std::string& what)
    : c10::DistBackendError(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                            describe(where, what)),
      where_(std::move(where)) {}

CollectiveError::CollectiveError(const std::string& what)
    : c10::ValueError(c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what) {}

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

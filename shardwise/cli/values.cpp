// Parsing of flag values: all of the text must match.
#include <c10/util/Exception.h>

#include <charconv>
#include <cmath>

#include "shardwise/base/error.h"
#include "shardwise/cli/flags.h"

namespace shardwise::cli {
namespace {

/// Calls std::from_chars; returns whether it parsed all of `text`.
template <class T>
bool parse_all(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

}  // namespace

void read_value(const std::string& flag, const std::string& text, int64_t& value) {
  TORCH_CHECK_VALUE(parse_all(text, value), flag, " must be an integer of 64 bits; got '",
                    base::shortened(text), "' [SW0002]");
}

void read_value(const std::string& flag, const std::string& text, uint64_t& value) {
  TORCH_CHECK_VALUE(parse_all(text, value), flag, " must be an integer from 0 to 2^64 - 1; got '",
                    base::shortened(text), "' [SW0003]");
}

void read_value(const std::string& flag, const std::string& text, double& value) {
  TORCH_CHECK_VALUE(parse_all(text, value) && std::isfinite(value), flag, " must be a finite number; got '",
                    base::shortened(text), "' [SW0004]");
}

void read_value(const std::string& flag, const std::string& text, std::string& value) {
  TORCH_CHECK_VALUE(!text.empty(), flag, " must not be empty; got '' [SW0005]");
  value = text;
}

void check_choice(const std::string& command, const std::string& flag, const std::string& value,
                  const std::vector<std::string>& choices) {
  std::string known;
  for (const std::string& choice : choices) {
    if (choice == value) return;
    known.append(known.empty() ? "" : ", ").append(choice);
  }
  const std::string got = value.empty() ? "''" : base::shortened(value);
  TORCH_CHECK_VALUE(false, command, ": ", flag, " must be one of ", known, "; got ", got, " [SW0054]");
}

void check_range(const std::string& command, const std::string& flag, int64_t value, int64_t min,
                 int64_t max) {
  TORCH_CHECK_VALUE(value >= min && value <= max, command, ": ", flag, " must be from ", min, " to ", max,
                    "; got ", value, " [SW0090]");
}

}  // namespace shardwise::cli

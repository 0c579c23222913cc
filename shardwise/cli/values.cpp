// Texts as values: the whole text or an error.
#include <c10/util/Exception.h>

#include <charconv>
#include <cmath>

#include "shardwise/cli/flags.h"

namespace shardwise::cli {
namespace {

/// std::from_chars over all of `text`.
template <class T>
bool read_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

}  // namespace

void read_value(const std::string& flag, const std::string& text, int64_t& value) {
  TORCH_CHECK_VALUE(read_whole(text, value), flag, " takes a whole number of 64 bits; got '", text, "'");
}

void read_value(const std::string& flag, const std::string& text, uint64_t& value) {
  TORCH_CHECK_VALUE(read_whole(text, value), flag, " takes a whole number from 0 to 2^64 - 1; got '", text,
                    "'");
}

void read_value(const std::string& flag, const std::string& text, double& value) {
  TORCH_CHECK_VALUE(read_whole(text, value) && std::isfinite(value), flag, " takes a finite number; got '",
                    text, "'");
}

void read_value(const std::string& flag, const std::string& text, std::string& value) {
  TORCH_CHECK_VALUE(!text.empty(), flag, " takes a text that is not empty; got ''");
  value = text;
}

}  // namespace shardwise::cli

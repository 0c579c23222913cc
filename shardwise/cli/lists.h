// Flags whose value is a list separated by commas.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::cli {

/// Returns the parts of `text` between commas, at least one: "a,,b" has three.
inline std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(',', begin);
    parts.emplace_back(text.substr(begin, end - begin));
  }
  return parts;
}

}  // namespace shardwise::cli

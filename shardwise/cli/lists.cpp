#include "shardwise/cli/lists.h"

#include "shardwise/cli/flags.h"

namespace shardwise::cli {

std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(',', begin);
    parts.emplace_back(text.substr(begin, end - begin));
  }
  return parts;
}

std::vector<int64_t> integers_of(const std::string& command, const std::string& flag, std::string_view text,
                                 int64_t min, int64_t max) {
  std::vector<int64_t> integers;
  for (const std::string& part : parts_of(text)) {
    read_value(command + ": " + flag, part, integers.emplace_back());
    check_range(command, flag, integers.back(), min, max);
  }
  return integers;
}

std::vector<int64_t> pp_layers_of(const std::string& command, std::string_view text) {
  constexpr int64_t kMostLayers = 1 << 20;  // far more than any model has
  return integers_of(command, "--pp-layers", text, 1, kMostLayers);
}

}  // namespace shardwise::cli

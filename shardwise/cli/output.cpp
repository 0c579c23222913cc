#include "shardwise/cli/output.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace shardwise::cli {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  check_output();
}

std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string in_script(const std::string& json) {
  std::string text;
  for (const char c : json) text += c == '<' ? "\\u003c" : std::string(1, c);
  return text;
}

void check_output() {
  const bool is_out = std::fflush(stdout) == 0 && !std::ferror(stdout);
  TORCH_CHECK(is_out,
              "standard output: must be writable; got an error; it is closed, or its disk is full [SW0380]");
}

}  // namespace shardwise::cli

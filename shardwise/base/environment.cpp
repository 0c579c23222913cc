#include "shardwise/base/environment.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

namespace shardwise::base {

std::optional<std::string> env_text(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

int env_count(const char* variable, int least, int fallback) {
  const std::optional<std::string> text = env_text(variable);
  if (!text) return fallback;
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [parsed_end, error] = std::from_chars(text->data(), end, value);
  TORCH_CHECK_VALUE(error == std::errc() && parsed_end == end && value >= least, "environment: ", variable,
                    " must be an integer of at least ", least, "; got '", *text, "' [SW0107]");
  return value;
}

std::vector<std::string> env_all() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
  return variables;
}

}  // namespace shardwise::base

#include "shardwise/base/log.h"

#include <string>

#include "shardwise/base/console.h"

namespace shardwise::base {

void log_info(std::string_view text) {
  Console::standard_error().line(text);
}

void log_warning(std::string_view text) {
  Console::standard_error().line("warning: " + std::string(text), Color::yellow);
}

void log_error(std::string_view text) {
  Console::standard_error().line("error: " + std::string(text), Color::red);
}

}  // namespace shardwise::base

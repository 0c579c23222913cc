#include "shardwise/base/log.h"

#include <string>

#include "shardwise/base/console.h"
#include "shardwise/base/error.h"

namespace shardwise::base {

void log_info(std::string_view text) {
  Console::standard_error().line(printable(text));
}

void log_warning(std::string_view text) {
  Console::standard_error().line("warning: " + printable(text), Color::yellow);
}

void log_error(std::string_view text) {
  Console::standard_error().line("error: " + printable(text), Color::red);
}

}  // namespace shardwise::base

#include "shardwise/base/log.h"

#include <algorithm>
#include <string>

#include "shardwise/base/console.h"
#include "shardwise/base/error.h"

namespace shardwise::base {

void log_info(std::string_view text) {
  std::string lines;
  for (size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines += (begin == 0 ? "" : "\n") + printable(text.substr(begin, end - begin));
  }
  Console::standard_error().line(lines);
}

void log_warning(std::string_view text) {
  Console::standard_error().line("warning: " + printable(text), Color::yellow);
}

void log_error(std::string_view text) {
  Console::standard_error().line("error: " + printable(text), Color::red);
}

}  // namespace shardwise::base

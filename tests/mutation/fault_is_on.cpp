#include "tests/mutation/fault_is_on.h"

#include <cstdlib>

namespace shardwise {
namespace {

std::string_view name_in_environment() {
  const char* const name = std::getenv("SHARDWISE_FAULT");
  return name == nullptr ? "" : name;
}

}  // namespace

bool fault_is_on(std::string_view fault) {
  static const std::string_view name = name_in_environment();
  return name == fault;
}

}  // namespace shardwise

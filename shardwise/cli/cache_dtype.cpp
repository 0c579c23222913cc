#include "shardwise/cli/cache_dtype.h"

#include "shardwise/cli/flags.h"

namespace shardwise::cli {

std::optional<at::ScalarType> cache_dtype_of(const std::string& command, const std::string& flag,
                                             const std::string& name) {
  check_choice(command, flag, name, {"auto", "int8"});
  return name == "int8" ? std::optional(at::kChar) : std::nullopt;
}

}  // namespace shardwise::cli

// Selects the extent of tests with a large space or a long run.
#pragma once
#include <cstdlib>
#include <string_view>

namespace shardwise::testing {

/// Returns true if tests run full spaces and long runs (`make test-full`) instead of coverings and samples.
inline bool is_full() {
  const char* asked = std::getenv("SHARDWISE_TEST_FULL");
  return asked && std::string_view(asked) == "1";
}

}  // namespace shardwise::testing

// How much of a large space, or of a long run, the tests walk through.
#pragma once
#include <cstdlib>
#include <string_view>

namespace shardwise::testing {

/// Whether whole spaces and long runs are wanted (`make test-full`) in place of coverings and samples.
inline bool is_full() {
  const char* asked = std::getenv("SHARDWISE_TEST_FULL");
  return asked && std::string_view(asked) == "1";
}

}  // namespace shardwise::testing

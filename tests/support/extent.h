// Selects the extent of tests with a large space or a long run.
#pragma once
#include "shardwise/base/environment.h"

namespace shardwise::testing {

/// Returns true if tests run full spaces and long runs (`make test-full`) instead of coverings and samples.
inline bool is_full() {
  return base::env_text("SHARDWISE_TEST_FULL") == "1";
}

}  // namespace shardwise::testing

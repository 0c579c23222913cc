// What the kernels' tests ask of the emulator, on a GPU: it has its own order, and compute-sanitizer watches
// from outside.
#include <cstdlib>

#include "tests/support/emulator/emulator.h"

namespace shardwise::emulator {

void set(const Settings&) {}

int64_t launches() {
  return 0;  // not counted
}

bool is_sanitized() {
  return std::getenv("SHARDWISE_SMALL_SHAPES") != nullptr;
}

}  // namespace shardwise::emulator

#include "shardwise/base/prefetch.h"

namespace shardwise::base {

int64_t prefetch_bytes() {
  // On a Xeon with AMX, 1024 bytes read at 3/4 of the speed of 4096. On Zen 4 the hardware prefetcher stops
  // from 4096 bytes on: int4 in groups of 32 then reads at 2/3 of the speed.
  static const int64_t bytes = __builtin_cpu_is("intel") ? 4096 : 1024;
  return bytes;
}

}  // namespace shardwise::base

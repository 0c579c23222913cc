#include "shardwise/comm/shm/shm.h"

#include <c10/util/Exception.h>

#include "shardwise/comm/shm/backend.h"

namespace shardwise::comm::shm {

Group connect(const Options& options) {
  TORCH_CHECK_VALUE(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
                    "connect: rank must be in [0, size); got rank ", options.rank, " of ", options.size);
  if (options.size == 1) return Group();
  auto transport = std::make_shared<Transport>(meet(options), options.rank, options.timeout);
  return Group(c10::make_intrusive<Backend>(transport), transport);
}

}  // namespace shardwise::comm::shm

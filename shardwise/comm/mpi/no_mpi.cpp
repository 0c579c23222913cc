// Replaces the rest of this directory in a build without MPI.
#include <c10/util/Exception.h>

#include "shardwise/comm/mpi/mpi.h"

namespace shardwise::comm::mpi {

bool is_built_in() {
  return false;
}

Group connect(const ConnectOptions& options) {
  TORCH_CHECK_VALUE(false,
                    "connect: multi-node groups need Open MPI; this build was configured without it; got ",
                    options.ranks.size(), " ranks of group ", options.name,
                    "; install libopenmpi-dev and build again [SW0511]");
}

void shutdown() {}

}  // namespace shardwise::comm::mpi

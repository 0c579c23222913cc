// In place of the rest of this directory where there is no MPI.
#include <c10/util/Exception.h>

#include "shardwise/comm/mpi/mpi.h"

namespace shardwise::comm::mpi {

bool is_built_in() {
  return false;
}

Group connect(const Options& options) {
  TORCH_CHECK_VALUE(
      false, "connect: ranks of several hosts are joined by Open MPI, which this build lacks; got ",
      options.ranks.size(), " ranks of group ", options.name, "; install libopenmpi-dev and build again");
}

void finish() {}

}  // namespace shardwise::comm::mpi

// Replaces the rest of this directory if CMake finds no CUDA headers.
#include <c10/util/Exception.h>

#include "shardwise/comm/nccl/nccl.h"

namespace shardwise::comm::nccl {

bool is_built_in() {
  return false;
}

int device_count() {
  TORCH_CHECK_VALUE(false,
                    "device_count: GPUs need a build with NCCL; got a build without it; "
                    "install the CUDA and NCCL headers and rebuild [SW0303]");
}

Group connect(const ConnectOptions& options) {
  TORCH_CHECK_VALUE(false, "connect: a group of GPUs needs a build with NCCL; got ",
                    options.bootstrap_group.size(),
                    " ranks in a build without it; install the CUDA and NCCL headers and rebuild [SW0302]");
}

}  // namespace shardwise::comm::nccl

// In place of the rest of this directory where there are no CUDA headers.
#include <c10/util/Exception.h>

#include "shardwise/comm/nccl/nccl.h"

namespace shardwise::comm::nccl {

bool is_built_in() {
  return false;
}

int device_count() {
  TORCH_CHECK_VALUE(false,
                    "device_count: GPUs are for a build with NCCL, which this one lacks; got no plugin; "
                    "install the headers of CUDA and NCCL and build again");
}

Group connect(const Options& options) {
  TORCH_CHECK_VALUE(false, "connect: ranks with a GPU each are joined by NCCL, which this build lacks; got ",
                    options.meeting.size(), " ranks; install the headers of CUDA and NCCL and build again");
}

}  // namespace shardwise::comm::nccl

// The collectives of the plugin of --device cuda.
#pragma once
#include "shardwise/device/plugin.h"

namespace shardwise::cuda {

/// Plugin::collectives. Each plugin defines it: NCCL's, or, in tests, those of ranks that share a GPU.
extern const device::Collectives kCollectives;

}  // namespace shardwise::cuda

// Collectives of ranks that share a GPU.
#include "shardwise/cuda/gpu/collectives.h"

#include <c10/cuda/CUDAFunctions.h>

#include "tests/support/virtual_ranks/collectives.h"

namespace shardwise::cuda {
namespace {

std::shared_ptr<comm::CollectiveBackend> staged(comm::CollectiveBackend& host) {
  return std::make_shared<virtual_ranks::StagedCollectives>(
      host, at::Device(at::kCUDA, c10::cuda::current_device()));
}

}  // namespace

const device::Collectives kCollectives = &staged;

}  // namespace shardwise::cuda

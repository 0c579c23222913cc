#include "tests/support/fake_device/open.h"

#include <cuda_runtime_api.h>

#include "tests/support/emulator/emulator.h"

namespace shardwise::fake_device {

Open::Open() : lock_(emulator::mutex()) {
  cudaDeviceSynchronize();
  Memory::instance().reclaim();
}

}  // namespace shardwise::fake_device

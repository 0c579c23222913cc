// A plugin of another version, which must not be used.
#include <cstdlib>

#include "shardwise/device/plugin.h"
#include "shardwise/kernels/device.h"

namespace {

at::Device open() {
  std::abort();
}

alignas(shardwise::kernels::DeviceKernels) char no_kernels[sizeof(shardwise::kernels::DeviceKernels)];

}  // namespace

extern "C" const shardwise::device::Plugin shardwise_device_plugin;
const shardwise::device::Plugin shardwise_device_plugin{
    "0.0.0", &open, reinterpret_cast<const shardwise::kernels::DeviceKernels&>(no_kernels), nullptr};

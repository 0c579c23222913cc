// The interface between device.cpp and a plugin, a library with a type of device that is loaded at run time.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

namespace shardwise::comm {
class CollectiveBackend;
}
namespace shardwise::kernels {
class DeviceKernels;
}

namespace shardwise::device {

/// Returns the collectives of `host`, which are those of tensors on the CPU, on tensors of the device.
using Collectives = std::shared_ptr<comm::CollectiveBackend> (*)(comm::CollectiveBackend& host);

/// What a plugin exports. It uses no symbol of the program.
struct Plugin {
  const char* version;  // SHARDWISE_VERSION of its build
  /// Makes the device usable from ATen and returns it. Errors: c10::Error with the reason if there is none.
  at::Device (*open)();
  const kernels::DeviceKernels& kernels;
  const Collectives& collectives;  // null: those of NCCL
};

/// The name of the only symbol that the library exports.
inline constexpr char kPluginSymbol[] = "shardwise_device_plugin";

}  // namespace shardwise::device

// The interface between nccl.cpp and the plugin, the only library that links libtorch's CUDA half.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shardwise::comm::nccl {

/// The arguments of Plugin::connect.
struct Call {
  c10::intrusive_ptr<c10d::Store> store;  // shared by all ranks, used by no other group
  int rank;
  int size;
  int device;
  std::chrono::milliseconds timeout;
};

/// The plugin's functions.
struct Plugin {
  /// Returns the number of GPUs. Errors: c10::Error with the reason if there is none.
  int (*device_count)();
  /// Connects a backend bound to `call.device`. Collective. Errors: c10::Error, torch's.
  c10::intrusive_ptr<c10d::Backend> (*connect)(const Call& call);
};

/// The name of the only symbol that the library exports.
inline constexpr char kPluginSymbol[] = "shardwise_nccl_plugin";

}  // namespace shardwise::comm::nccl

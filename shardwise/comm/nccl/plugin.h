// What nccl.cpp finds in the plugin, the only library that links libtorch's CUDA half.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shardwise::comm::nccl {

struct Call {
  c10::intrusive_ptr<c10d::Store> store;  // reached by all ranks, used by no other group
  int rank;
  int size;
  int device;
  std::chrono::milliseconds timeout;
};

struct Plugin {
  /// Errors: c10::Error that says why there is none.
  int (*device_count)();
  /// Collective. Bound to the device. Errors: c10::Error, torch's own.
  c10::intrusive_ptr<c10d::Backend> (*connect)(const Call& call);
};

/// The name of the one object that the library shows.
inline constexpr char kPluginSymbol[] = "shardwise_nccl_plugin";

}  // namespace shardwise::comm::nccl

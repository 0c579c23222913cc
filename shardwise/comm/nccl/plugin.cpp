// The plugin: a library with c10d's ProcessGroupNCCL for nccl.cpp. It uses no symbol of the program.
#include "shardwise/comm/nccl/plugin.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace shardwise::comm::nccl {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class NcclBackend final : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;

  /// Waits for queued operations, except after an exception: a failed peer would never let them complete.
  ~NcclBackend() override {
    try {
      if (std::uncaught_exceptions() > 0) {
        ProcessGroupNCCL::abort();
      } else {
        ProcessGroupNCCL::shutdown();
      }
    } catch (const std::exception& error) {
      TORCH_WARN("nccl: the group did not shut down cleanly; got ", error.what());
    }
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    check_tag("send", tag);
    return ProcessGroupNCCL::send(tensors, to, tag);
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    check_tag("recv", tag);
    return ProcessGroupNCCL::recv(tensors, from, tag);
  }

 private:
  /// Rejects tags, which ProcessGroupNCCL ignores: a receive could get the wrong message.
  static void check_tag(const char* call, int tag) {
    TORCH_CHECK_VALUE(tag == 0, call, ": NCCL messages must have tag 0; got ", tag, " [SW0309]");
  }
};

/// Returns the number of GPUs. ATen looks for its libraries once and ignores one that is loaded later.
int device_count() {
  TORCH_CHECK(at::detail::getCUDAHooks().hasCUDART(),
              "ATen was asked for CUDA before the plugin was opened [SW0307]");
  return c10::cuda::device_count_ensure_non_zero();
}

/// Sets variables that NCCL and torch read once, unless the user has set them.
bool set_defaults() {
  // Otherwise NCCL connects in a group's first collective, which torch's watchdog does not see: a rank that
  // waits there for one that never calls would wait for ever.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  // The watchdog sleeps four times this long, for dumps, before it ends the process; torch's value is 15 s.
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250", /*overwrite=*/0);
  // send and recv_ are in order with the group's collectives, as nccl.h says; torch warns of it.
  setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0", /*overwrite=*/0);
  return true;
}

c10::intrusive_ptr<c10d::Backend> connect(const Call& call) {
  [[maybe_unused]] static const bool has_defaults = set_defaults();
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(call.device));
  c10::cuda::set_device(device.index());
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = call.timeout;
  auto backend = c10::make_intrusive<NcclBackend>(call.store, call.rank, call.size, options);
  backend->setBoundDeviceId(device);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

}  // namespace
}  // namespace shardwise::comm::nccl

// NOLINTNEXTLINE(readability-identifier-naming): kPluginSymbol
extern "C" __attribute__((visibility("default"))) const shardwise::comm::nccl::Plugin shardwise_nccl_plugin{
    &shardwise::comm::nccl::device_count, &shardwise::comm::nccl::connect};

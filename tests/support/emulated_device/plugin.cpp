// The plugin of --device emulated: the kernels for GPUs on the CPU, by the emulator, with ATen's operations
// by ATen's CPU kernels.
#include "shardwise/device/plugin.h"

#include <ATen/ops/addmm.h>

#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/version.h"
#include "tests/support/fake_device/allocator.h"
#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/graph.h"
#include "tests/support/virtual_ranks/collectives.h"

namespace shardwise::cuda {

cudaStream_t current_stream() {
  return fake_device::stream();
}

int multiprocessors() {
  return 2;
}

int64_t peak_bytes() {
  return static_cast<int64_t>(fake_device::peak_bytes());
}

namespace {

struct EmulatedGraph final : kernels::DeviceGraph {
  explicit EmulatedGraph(const std::function<void()>& queue_work) : graph(queue_work) {}
  void replay() override { graph.replay(); }
  fake_device::Graph graph;
};

}  // namespace

std::unique_ptr<kernels::DeviceGraph> capture(const std::function<void()>& queue_work) {
  return std::make_unique<EmulatedGraph>(queue_work);
}

void add_weight_grad(const at::Tensor& main_grad_, const at::Tensor& dy, const at::Tensor& x) {
  main_grad_.addmm_(dy.to(at::kFloat).t(), x.to(at::kFloat));
}

}  // namespace shardwise::cuda

namespace shardwise::emulated_device {
namespace {

at::Device open() {
  fake_device::install();
  return {at::kPrivateUse1, 0};
}

std::shared_ptr<comm::CollectiveBackend> collectives(comm::CollectiveBackend& host) {
  return std::make_shared<virtual_ranks::StagedCollectives>(host, at::Device(at::kPrivateUse1, 0));
}

const cuda::Kernels kKernels;
const device::Collectives kCollectives = &collectives;

}  // namespace
}  // namespace shardwise::emulated_device

// NOLINTBEGIN(readability-identifier-naming): kPluginSymbol, and tests that count
extern "C" {
#pragma GCC visibility push(default)
extern const shardwise::device::Plugin shardwise_device_plugin;
const shardwise::device::Plugin shardwise_device_plugin{SHARDWISE_VERSION, &shardwise::emulated_device::open,
                                                        shardwise::emulated_device::kKernels,
                                                        shardwise::emulated_device::kCollectives};
int64_t shardwise_emulated_reads() {
  return shardwise::fake_device::counts().reads;
}
int64_t shardwise_emulated_set_capacity(int64_t bytes) {
  shardwise::fake_device::set_capacity(static_cast<size_t>(bytes));
  return bytes;
}
int64_t shardwise_emulated_captures() {
  return shardwise::fake_device::counts().captures;
}
int64_t shardwise_emulated_replays() {
  return shardwise::fake_device::counts().replays;
}
int64_t shardwise_emulated_launches() {
  return shardwise::fake_device::counts().launches;
}
#pragma GCC visibility pop
}
// NOLINTEND(readability-identifier-naming)

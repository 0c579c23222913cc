// The plugin of --device cuda: the kernels for GPUs, with ATen's operations on GPUs. It uses no symbol of the
// program.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/addmm.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "shardwise/cuda/architectures.h"
#include "shardwise/cuda/gpu/collectives.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/device/plugin.h"
#include "shardwise/version.h"

namespace shardwise::cuda {
namespace {

int attribute(cudaDeviceAttr which) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, which, c10::cuda::current_device());
  TORCH_CHECK(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error), " [SW0850]");
  return value;
}

}  // namespace

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

int multiprocessors() {
  static const int count = attribute(cudaDevAttrMultiProcessorCount);  // a process has one GPU
  return count;
}

int64_t peak_bytes() {
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].peak;
}

namespace {

/// Graphs share memory: what one wrote is read before another is replayed.
class CapturedGraph final : public kernels::DeviceGraph {
 public:
  explicit CapturedGraph(const std::function<void()>& queue_work) {
    static const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
    const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromPool());  // CUDA's default cannot be captured
    at::cuda::CUDAEvent queued;
    queued.record(before);
    queued.block(c10::cuda::getCurrentCUDAStream());
    // Of this thread alone: NCCL's watches its own work by calls that a capture of all would forbid.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      queue_work();
    } catch (...) {
      end_failed_capture();
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  void end_failed_capture() {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {  // of what was wrong with the work, which is thrown next
    }
  }

  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<kernels::DeviceGraph> capture(const std::function<void()>& queue_work) {
  return std::make_unique<CapturedGraph>(queue_work);
}

void add_weight_grad(const at::Tensor& main_grad_, const at::Tensor& dy, const at::Tensor& x) {
  at::Tensor out = main_grad_;
  at::addmm_out(out, main_grad_, dy.t(), x, at::kFloat);
}

namespace {

/// Errors: c10::Error if no kernel was compiled for the GPU.
void check_architecture() {
  const int capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  TORCH_CHECK(runs_on(SHARDWISE_CUDA_ARCHITECTURES, capability), "a GPU of sm_", capability,
              ", and kernels for ", SHARDWISE_CUDA_ARCHITECTURES,
              "; rebuild with -DSHARDWISE_CUDA_ARCHITECTURES=sm_", capability, " [SW0851]");
}

at::Device open() {
  TORCH_CHECK(at::detail::getCUDAHooks().hasCUDART(),
              "ATen was asked for CUDA before the plugin was opened [SW0307]");
  c10::cuda::device_count_ensure_non_zero();
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  check_architecture();
  return device;
}

const Kernels kKernels;

}  // namespace
}  // namespace shardwise::cuda

// NOLINTBEGIN(readability-identifier-naming): kPluginSymbol
extern "C" __attribute__((visibility("default"))) const shardwise::device::Plugin shardwise_device_plugin;
const shardwise::device::Plugin shardwise_device_plugin{
    SHARDWISE_VERSION, &shardwise::cuda::open, shardwise::cuda::kKernels, shardwise::cuda::kCollectives};
// NOLINTEND(readability-identifier-naming)

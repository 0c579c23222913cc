// What the kernels' table needs of a device. Each plugin defines it: for GPUs, and for the emulator.
#pragma once
#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

namespace shardwise::kernels {
class DeviceGraph;
}

namespace shardwise::cuda {

/// Returns the stream in which the calling thread queues its work.
cudaStream_t current_stream();

/// Returns the number of multiprocessors of the current device.
int multiprocessors();

/// Returns the most bytes that this process's tensors on the device had at a time.
int64_t peak_bytes();

/// DeviceKernels::capture.
std::unique_ptr<kernels::DeviceGraph> capture(const std::function<void()>& queue_work);

/// Computes main_grad += dyᵀ·x, accumulated in fp32. Shapes: `main_grad` [o, i] fp32, `dy` [n, o], `x` [n,
/// i], both bf16.
void add_weight_grad(const at::Tensor& main_grad_, const at::Tensor& dy, const at::Tensor& x);

}  // namespace shardwise::cuda

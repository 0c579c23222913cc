// A device "emulated:0" of torch, for tests without a GPU: its memory is the process's, but closed to the
// host; its kernels are the project's CUDA kernels on the emulator; ATen's operations run on the CPU
// (fallback.h).
//
// As on a GPU, kernels are asynchronous, freed memory is reused in the order of the stream, tensors of two
// devices do not mix, and the host dies if it touches a device pointer. There is one device with one stream.
#pragma once
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace shardwise::fake_device {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

/// Registers the device with torch, once per process. Nothing of it is registered before. Errors: c10::Error
/// if the process has another device of this kind.
void install();

inline c10::Device device() {
  return {kDeviceType, 0};
}
/// Returns the stream of kernels that use the device's tensors: the default stream.
inline cudaStream_t stream() {
  return nullptr;
}

}  // namespace shardwise::fake_device

// Tensors of the CPU's kernels beside arrays of the emulated device, for tests of equal bits.
#pragma once
#include <ATen/core/Tensor.h>
#include <cuda_bf16.h>

#include <cstring>
#include <type_traits>

#include "tests/emulator/device_array.h"

namespace shardwise::kernels::cuda {

using emulator::DeviceArray;

template <class T>
inline constexpr at::ScalarType kDtypeOf = std::is_same_v<T, float>     ? at::kFloat
                                           : std::is_same_v<T, int64_t> ? at::kLong
                                                                        : at::kBFloat16;

/// A copy of a tensor's elements on the device.
template <class T>
DeviceArray<T> on_device(const at::Tensor& tensor) {
  const at::Tensor elements = tensor.contiguous();
  const auto* data = static_cast<const T*>(elements.const_data_ptr());
  return DeviceArray<T>(elements.numel(), [data](size_t i) { return data[i]; });
}

/// Returns how many elements of the array do not have the bits of the tensor's.
template <class T>
int64_t other_bits(const DeviceArray<T>& array, const at::Tensor& tensor) {
  const at::Tensor elements = tensor.contiguous();
  const auto* data = static_cast<const T*>(elements.const_data_ptr());
  int64_t count = 0;
  for (int64_t i = 0; i < elements.numel(); ++i)
    count += std::memcmp(&data[i], &array.values()[i], sizeof(T)) == 0 ? 0 : 1;
  return count;
}

}  // namespace shardwise::kernels::cuda

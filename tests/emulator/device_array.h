// Memory of the emulated device, for tests; on a GPU, memory that the host shares.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

namespace shardwise::emulator {

/// Elements that start as NaNs, or as value(i). The host may read them once it has waited for the device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    void* memory = nullptr;
    const size_t bytes = n * sizeof(T);
    if (n == 0) return;
    if (cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) != cudaSuccess)
      throw std::runtime_error("the device has no memory for " + std::to_string(bytes) + " bytes");
    std::memset(memory, 0xff, bytes);
    data_ = static_cast<T*>(memory);
  }
  DeviceArray(size_t n, const std::function<T(size_t)>& value) : DeviceArray(n) {
    for (size_t i = 0; i < n; ++i) data_[i] = value(i);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::span<const T> values() const { return {data_, n_}; }
  /// Returns how many elements are not value(i).
  size_t wrong(const std::function<T(size_t)>& value) const {
    size_t count = 0;
    for (size_t i = 0; i < n_; ++i) count += data_[i] == value(i) ? 0 : 1;
    return count;
  }

 private:
  size_t n_;
  T* data_ = nullptr;
};

}  // namespace shardwise::emulator

// CPU tensors over the memory of device tensors.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <vector>

namespace shardwise::fake_device {

/// Returns a CPU tensor with the same memory, shape and strides. It keeps the memory alive, and may be used
/// only under an Open. A tensor of the CPU is returned as it is.
at::Tensor on_host(const at::Tensor& x);

/// The views of one operation. Device tensors that share a storage have views that share one.
class HostViews {
 public:
  /// As on_host; an undefined tensor is returned as it is.
  at::Tensor of(const at::Tensor& x);
  /// Gives device tensors the shapes and the memory that an operation gave to their views.
  void take_over();
  /// Returns the device tensor of a result: the one whose view it is, a new one that shares memory with it,
  /// or a copy.
  at::Tensor on_device(const at::Tensor& result) const;

 private:
  struct SharedStorage {
    c10::Storage device, host;
  };
  struct View {
    at::Tensor device, host;
  };
  const c10::Storage& host_storage(const c10::Storage& device);

  std::vector<SharedStorage> storages_;
  std::vector<View> views_;
};

}  // namespace shardwise::fake_device

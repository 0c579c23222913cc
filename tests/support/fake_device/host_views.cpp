#include "tests/support/fake_device/host_views.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "tests/support/fake_device/allocator.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

void forget(void* storage) {
  delete static_cast<c10::Storage*>(storage);
}

/// Operations may give it other memory, as they do to resize a result.
c10::Storage share(const c10::Storage& device) {
  c10::DataPtr data(device.mutable_data(), new c10::Storage(device), &forget, c10::kCPU);
  return {c10::Storage::use_byte_size_t(), device.nbytes(), std::move(data), c10::GetCPUAllocator(),
          /*resizable=*/true};
}

void take_shape(const at::Tensor& to, const at::Tensor& from) {
  to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

at::Tensor with_storage(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& shape) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                               c10::DispatchKeySet(key), shape.dtype());
  take_shape(tensor, shape);
  return tensor;
}

bool has_shape_of(const at::Tensor& x, const at::Tensor& other) {
  return x.sizes() == other.sizes() && x.strides() == other.strides() &&
         x.storage_offset() == other.storage_offset();
}

at::Tensor copy_to_device(const at::Tensor& host) {
  at::Tensor copy = at::empty_strided(host.sizes(), host.strides(), host.options().device(device()));
  const Open open;
  on_host(copy).copy_(host);
  return copy;
}

}  // namespace

const c10::Storage& HostViews::host_storage(const c10::Storage& device) {
  for (const SharedStorage& storage : storages_)
    if (storage.device.is_alias_of(device)) return storage.host;
  storages_.push_back({device, share(device)});
  return storages_.back().host;
}

at::Tensor HostViews::of(const at::Tensor& x) {
  if (!x.defined() || x.device().type() != kDeviceType) return x;
  for (const View& view : views_)
    if (view.device.is_same(x)) return view.host;
  views_.push_back({x, with_storage(host_storage(x.storage()), c10::DispatchKey::CPU, x)});
  return views_.back().host;
}

void HostViews::take_over() {
  for (const auto& [device, host] : storages_) {
    if (host.data() == device.data()) continue;
    resize_storage(device, host.nbytes());
    std::memcpy(device.mutable_data(), host.data(), host.nbytes());
  }
  for (const auto& [device, host] : views_)
    if (!has_shape_of(device, host)) take_shape(device, host);
}

at::Tensor HostViews::on_device(const at::Tensor& result) const {
  if (!result.defined()) return result;
  for (const View& view : views_)
    if (view.host.is_same(result)) return view.device;
  for (const auto& [device, host] : storages_)
    if (host.is_alias_of(result.storage()))
      return with_storage(device, c10::DispatchKey::PrivateUse1, result);
  return copy_to_device(result);
}

at::Tensor on_host(const at::Tensor& x) {
  return HostViews().of(x);
}

}  // namespace shardwise::fake_device

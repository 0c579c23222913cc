#include "shardwise/kernels/device.h"

#include <array>
#include <atomic>

#include "shardwise/base/memory_counter.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {
namespace {

/// The tables by type of device; set once, when a plugin is opened.
std::atomic<const DeviceKernels*>& table_of(c10::DeviceType type) {
  static std::array<std::atomic<const DeviceKernels*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> tables{};
  return tables.at(static_cast<size_t>(type));
}

}  // namespace

void set_device_kernels(c10::DeviceType type, const DeviceKernels& kernels) {
  table_of(type) = &kernels;
}

const DeviceKernels& kernels_on(at::Device device) {
  const DeviceKernels* const kernels = table_of(device.type());
  TORCH_INTERNAL_ASSERT(kernels != nullptr, "no kernels for ", device);
  return *kernels;
}

int64_t peak_bytes(at::Device device) {
  return device.is_cpu() ? base::peak_bytes() : kernels_on(device).peak_bytes();
}

std::unique_ptr<DeviceGraph> capture(at::Device device, const std::function<void()>& queue_work) {
  return kernels_on(device).capture(queue_work);
}

const DeviceKernels& kernels_of_device(const char* op, std::initializer_list<at::Tensor> tensors) {
  const DeviceKernels* kernels = nullptr;
  const at::Tensor* first = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (!tensor.is_cpu()) {
      kernels = table_of(tensor.device().type());
      if (kernels == nullptr) check_on_cpu(op, tensor);
    }
    if (first == nullptr) first = &tensor;
    TORCH_CHECK_VALUE(tensor.device() == first->device(), op, ": tensors must be on one device; got ",
                      first->device(), " and ", tensor.device(), " [SW0839]");
  }
  return *kernels;
}

}  // namespace shardwise::kernels

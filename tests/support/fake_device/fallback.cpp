#include "tests/support/fake_device/fallback.h"

#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/host_views.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

/// Numbers that a GPU takes as arguments of a kernel have no dims.
void check_device(const std::string& name, const at::Tensor& x) {
  TORCH_CHECK(!x.defined() || x.device().type() == kDeviceType || x.dim() == 0, name,
              ": Expected all tensors to be on the same device, but found at least two devices, ", device(),
              " and ", x.device(), "!");
}

/// Indices, in lists of optional tensors, may be the CPU's.
void check_devices(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) check_device(name, argument.toTensor());
    if (argument.isTensorList())
      for (const at::Tensor& x : argument.toTensorVector()) check_device(name, x);
  }
}

/// Indices by a mask are as many as it has ones.
bool is_mask(const c10::IValue& argument) {
  if (!argument.isOptionalTensorList()) return false;
  return std::ranges::any_of(argument.toOptionalTensorVector(), [](const std::optional<at::Tensor>& x) {
    return x && x->defined() && (x->scalar_type() == at::kBool || x->scalar_type() == at::kByte);
  });
}

/// Returns whether the host needs values, or shapes that depend on values. ATen applies aten::nonzero to the
/// masks of aten::index before, which counts.
bool makes_host_wait(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.schema().name() == "aten::index") return false;
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape) ||
         std::ranges::any_of(arguments, is_mask);
}

c10::IValue host_value(const c10::IValue& value, HostViews& views) {
  if (value.isTensor()) return views.of(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& x : value.toTensorVector()) list.push_back(views.of(x));
    return list;
  }
  if (value.isOptionalTensorList()) {
    OptionalTensors list;
    for (const auto& x : value.toOptionalTensorVector())
      list.push_back(x ? std::optional(views.of(*x)) : std::nullopt);
    return list;
  }
  return value;
}

c10::IValue device_value(const c10::IValue& value, const HostViews& views) {
  if (value.isTensor()) return views.on_device(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& x : value.toTensorVector()) list.push_back(views.on_device(x));
  return list;
}

}  // namespace

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  check_devices(name, arguments);
  const Open open;
  count_fallback(name);
  if (makes_host_wait(op, arguments)) count_read();
  HostViews views;
  for (size_t i = stack->size() - arguments.size(); i < stack->size(); ++i)
    (*stack)[i] = host_value((*stack)[i], views);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  views.take_over();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = device_value((*stack)[i], views);
}

}  // namespace shardwise::fake_device

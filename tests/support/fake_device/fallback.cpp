#include "tests/support/fake_device/fallback.h"

#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/emulator/emulator.h"
#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/graph.h"
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

/// Runs an operation on the CPU.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Open open;
  HostViews views;
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i)
    (*stack)[i] = host_value((*stack)[i], views);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  views.take_over();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = device_value((*stack)[i], views);
}

/// Runs a recorded operation, and writes its results where the first run had them.
void run_again(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
               const torch::jit::Stack& results) {
  HostViews views;
  torch::jit::Stack stack;
  for (const c10::IValue& argument : arguments) stack.push_back(host_value(argument, views));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor to = views.of(results[i].toTensor());
    if (!to.is_same(stack[i].toTensor())) to.copy_(stack[i].toTensor());
  }
}

/// What an operation would write to its arguments, kept from it while a graph is captured.
class WrittenArguments {
 public:
  WrittenArguments(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
    const Open open;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* const alias = op.schema().arguments()[i].alias_info();
      if (!alias || !alias->isWrite() || !arguments[i].isTensor()) continue;
      written_.push_back({arguments[i].toTensor(), on_host(arguments[i].toTensor()).clone()});
    }
  }
  ~WrittenArguments() {
    const Open open;
    for (const auto& [argument, before] : written_) on_host(argument).copy_(before);
  }
  WrittenArguments(const WrittenArguments&) = delete;
  WrittenArguments& operator=(const WrittenArguments&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

/// Records an operation. It runs once, on whatever its arguments have, for the shapes of its results.
void record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const torch::jit::Stack recorded(arguments.begin(), arguments.end());
  {
    const WrittenArguments written(op, recorded);
    run(op, stack);
  }
  const c10::ArrayRef<c10::IValue> results = torch::jit::last(*stack, op.schema().returns().size());
  run_or_record([op, recorded, made = torch::jit::Stack(results.begin(), results.end())] {
    run_again(op, recorded, made);
  });
}

}  // namespace

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  check_devices(name, arguments);
  count_fallback(name);
  if (makes_host_wait(op, arguments)) count_read();
  emulator::is_capturing() ? record(op, stack) : run(op, stack);
}

}  // namespace shardwise::fake_device

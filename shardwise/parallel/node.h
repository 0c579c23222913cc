// Small help for writing torch::autograd::Function nodes that carry C++ values.
#pragma once
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace shardwise::parallel {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
struct Kept : torch::CustomClassHolder {
  explicit Kept(T kept_value) : value(std::move(kept_value)) {}
  T value;
};

/// Carries `value` from forward to backward; tensors belong in save_for_backward instead.
template <class T>
void keep(AutogradContext* context, T value) {
  context->saved_data["kept"] = c10::IValue::make_capsule(c10::make_intrusive<Kept<T>>(std::move(value)));
}

template <class T>
T& kept(AutogradContext* context) {
  return static_cast<Kept<T>*>(context->saved_data["kept"].toCapsule().get())->value;
}

/// Function::apply builds its node even when nobody wants a gradient; ask first.
template <class... Tensors>
bool needs_gradient(const Tensors&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

}  // namespace shardwise::parallel

// Helpers for torch::autograd::Function nodes that carry C++ values from forward to backward.
#pragma once
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace shardwise::parallel {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
struct SavedState : torch::CustomClassHolder {
  explicit SavedState(T state) : value(std::move(state)) {}
  T value;
};

/// Stores `value` in `context` for backward. Tensors belong in save_for_backward instead.
template <class T>
void save_state(AutogradContext* context, T value) {
  context->saved_data["state"] =
      c10::IValue::make_capsule(c10::make_intrusive<SavedState<T>>(std::move(value)));
}

/// Returns the value that save_state stored in `context`.
template <class T>
T& saved_state(AutogradContext* context) {
  return static_cast<SavedState<T>*>(context->saved_data["state"].toCapsule().get())->value;
}

/// True if any of `inputs` needs a gradient. Function::apply records a node in any case, so check this first.
template <class... Tensors>
bool needs_gradient(const Tensors&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

}  // namespace shardwise::parallel

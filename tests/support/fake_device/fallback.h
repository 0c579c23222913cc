// Operations of ATen that the device has no kernels for.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace shardwise::fake_device {

/// Runs an operation on the CPU, over the memory of the device: what it writes in place is written there,
/// views stay views, and new results move to the device. Counts it, and as a read too if the host learns a
/// value, as it does from a GPU. Errors: c10::Error if a tensor of the CPU has dims and is no index.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace shardwise::fake_device

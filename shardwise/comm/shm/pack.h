// Packing: copies a tensor of any strides to dense row-major shared memory, and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>

namespace shardwise::comm::shm {

/// Errors: c10::ValueError if `x` is not on the CPU.
void check_on_cpu(const at::Tensor& x);
/// Copies `x` to `target`. Errors: c10::ValueError if `x` is not on the CPU.
void pack(std::byte* target, const at::Tensor& x);
/// Copies `source` into `target`, which is on the CPU.
void unpack(at::Tensor& target, const std::byte* source);

}  // namespace shardwise::comm::shm

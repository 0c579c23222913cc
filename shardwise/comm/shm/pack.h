// A tensor's elements to and from memory that ranks share: dense there, in row-major order; of any strides
// here.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>

namespace shardwise::comm::shm {

/// Errors: c10::ValueError when `x` is not there.
void check_on_cpu(const at::Tensor& x);
/// The same error.
void pack(std::byte* target, const at::Tensor& x);
/// `target` is on the CPU.
void unpack(at::Tensor& target, const std::byte* source);

}  // namespace shardwise::comm::shm

// Small arrays of the host in a device's memory, for the kernels that are queued next.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace shardwise::cuda {

/// Returns a copy of `bytes` on the device of `like`. Memory that is freed is not reused before the kernels
/// that were queued have run.
at::Tensor uploaded_bytes(std::span<const std::byte> bytes, const at::Tensor& like);

/// Returns a copy of `values` on the device of `like`, as bytes.
template <class Values>
at::Tensor uploaded(const Values& values, const at::Tensor& like) {
  return uploaded_bytes(std::as_bytes(std::span(values)), like);
}

}  // namespace shardwise::cuda

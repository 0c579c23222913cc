#include "shardwise/cuda/uploaded.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "shardwise/kernels/queued_copy.h"

namespace shardwise::cuda {

at::Tensor uploaded_bytes(std::span<const std::byte> bytes, const at::Tensor& like) {
  const at::Tensor host = at::empty({std::ssize(bytes)}, at::kByte);
  if (!bytes.empty()) std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  return kernels::queued_copy(host, like.device());
}

}  // namespace shardwise::cuda

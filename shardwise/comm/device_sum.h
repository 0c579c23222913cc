// The sum of several ranks' terms on a device that has no kernel of ours.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise::comm {

/// out = the sum of `terms`, each shaped as `out`, in their order: bf16 and fp16 in fp32, rounded once. By
/// ATen's operations, so wherever the tensors lie; on the CPU the bits of shm::reduce_kernel.
void sum_on_device(at::Tensor& out, const std::vector<at::Tensor>& terms);

}  // namespace shardwise::comm

// The sum of several ranks' partial results on a device for which this library has no kernel.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise::comm {

/// Writes the sum of `partials`, in their order, into `out`; all have its shape. bf16 and fp16 are summed in
/// fp32 and rounded once. Runs on any device, by ATen; on the CPU it gives the bits of reduce_kernel.
void sum_on_device(at::Tensor& out, const std::vector<at::Tensor>& partials);

}  // namespace shardwise::comm

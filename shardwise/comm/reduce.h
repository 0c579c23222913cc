// Elementwise reductions over the ranks' buffers in rank order: kernels for the CPU, whose instruction set is
// chosen at run time, and the sum on other devices.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/comm/reduce_isa.h"
#include "shardwise/comm/reduction.h"

namespace shardwise::comm {

/// Returns the kernel that computes targets[*][i] = reduction over r of sources[r][i]. bf16 and fp16 are
/// accumulated in fp32 (averages are divided in fp32) and rounded once, to nearest even. Integers wrap. NaN
/// propagates, in min and max too. For bool any nonzero byte is true, and 0 or 1 is stored. The result
/// (except a NaN's sign and payload; base/element.h) does not depend on the instruction set or on how a
/// message is split. Errors: c10::ValueError if the dtype is not supported, or not by this operation.
ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce reduce);

/// Writes the sum of `partials`, in their order, into `out`; all have its shape. bf16 and fp16 are summed in
/// fp32 and rounded once. Runs on any device, by ATen; on the CPU it gives the bits of reduce_kernel.
void sum_on_device(at::Tensor& out, const std::vector<at::Tensor>& partials);

}  // namespace shardwise::comm

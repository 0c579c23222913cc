// Calls of the host on copies of a device's tensors, in the order of the device's stream.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace shardwise::virtual_ranks {

using Tensors = std::vector<at::Tensor>;
/// Gets contiguous copies of the tensors, on the host.
using HostCall = std::function<void(const Tensors& reads, Tensors& writes)>;

/// Calls `call` with copies of `reads`, and copies what it wrote to `writes` (of any strides). While a graph
/// is captured, a node of it does that at every replay; an error then ends the process. Errors: c10::Error if
/// the copies of all captured calls and of this one exceed 64 MB.
void call_on_host(const Tensors& reads, const Tensors& writes, const HostCall& call);

}  // namespace shardwise::virtual_ranks

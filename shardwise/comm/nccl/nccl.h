// The backend for ranks with a GPU each: NCCL as c10d has it, entry point of the directory.
//
// Nothing links libtorch's CUDA half but the plugin (plugin.h), a library of its own that the first call here
// opens. Where CMake finds no CUDA headers, no_nccl.cpp stands in for the rest of the directory.
#pragma once
#include <chrono>
#include <optional>

#include "shardwise/comm/group.h"
#include "shardwise/comm/timeout.h"

namespace shardwise::comm::nccl {

struct Options {
  Group meeting;              // of the same ranks, on the CPU: by it they find each other and agree
  std::optional<int> device;  // number of the GPU; none: as many as ranks of this host come before this one
  std::chrono::milliseconds timeout = kTimeout;  // of meeting and of a collective
  explicit Options(Group ranks) : meeting(std::move(ranks)) {}
};

/// Whether this build has the plugin.
bool is_built_in();

/// GPUs that this process may use. Errors: c10::ValueError that says why there is none: no plugin, a library
/// that it needs is missing, no driver, no GPU, or something has asked ATen for CUDA before the plugin was
/// there (hasCUDA, getAccelerator, a backward pass), which keeps CUDA out of the process for good.
int device_count();

/// Collective over the ranks of `meeting`: a group of the same ranks whose tensors lie on one GPU each,
/// Group::device. `meeting` may be used on.
///
/// What is otherwise than on the CPU: calls return when they are queued on the current stream. Sums are
/// NCCL's, in an order of its own and in bf16 or fp16 rounded on the way, with the same bits on all ranks;
/// those of reduce_scatter_chunked stay in rank order. No bit_and, bit_or, bit_xor; no int16; no tags of
/// messages; no Symmetric. A rank that dies or stays away is found by torch's watchdog at the timeout, which
/// ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING); `abort` ends this rank's part alone. The group is
/// dropped before main returns, that of rank 0 last.
///
/// Errors: c10::ValueError, of all ranks with one text, when one has no such GPU; base::CommError when ranks
/// do not come in time; torch's own of NCCL.
Group connect(const Options& options);

}  // namespace shardwise::comm::nccl

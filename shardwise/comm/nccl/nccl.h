// The backend for ranks with one GPU each: c10d's NCCL backend. This header is the directory's entry point.
//
// Only the plugin (plugin.h) links libtorch's CUDA half. It is a separate library, which the first call here
// opens. If CMake finds no CUDA headers, no_nccl.cpp replaces the rest of the directory.
#pragma once
#include <chrono>
#include <optional>

#include "shardwise/comm/group.h"

namespace shardwise::comm::nccl {

struct ConnectOptions {
  Group bootstrap_group;      // a CPU group of the same ranks, which exchange addresses and errors over it
  std::optional<int> device;  // the GPU's index; default: the number of lower ranks on this node
  std::chrono::milliseconds timeout = kTimeout;  // of the rendezvous and of a collective
  explicit ConnectOptions(Group bootstrap) : bootstrap_group(std::move(bootstrap)) {}
};

/// Returns true if this build has the plugin.
bool is_built_in();

/// Returns the number of GPUs that this process may use. Errors: c10::ValueError with the reason if there is
/// none: no plugin, a library that it needs is missing, no driver, no GPU, or ATen was asked for CUDA before
/// the plugin was opened (hasCUDA, getAccelerator, a backward pass), which disables CUDA in the process.
int device_count();

/// Connects a group of the ranks of `bootstrap_group`, whose tensors are on one GPU per rank, Group::device.
/// Collective over `bootstrap_group`, which stays usable.
///
/// Differences from the CPU: calls return when they are queued on the current CUDA stream, where messages are
/// in order with collectives. NCCL chooses the order of sums and rounds intermediate sums to bf16 or fp16,
/// with the same bits on all ranks; for an average it multiplies by 1/t, rounded, before it adds.
/// reduce_scatter_chunked still sums in rank order. No bit_and, bit_or, bit_xor; no int16; no message tags;
/// no SymmetricHeap. If a rank dies or does not call a collective, torch's watchdog ends the process seconds
/// after the timeout (TORCH_NCCL_ASYNC_ERROR_HANDLING), but the first message between two ranks, also in
/// scatter, gather and all_to_all, connects them and waits without limit. `abort` ends this rank's part only.
/// Destroy the group before main returns, on rank 0 last.
///
/// Sets environment variables of NCCL and torch that are not set (plugin.cpp: set_defaults).
///
/// Errors: c10::ValueError with one text on all ranks if a rank has no such GPU; base::CommError if ranks
/// time out; torch's NCCL errors.
Group connect(const ConnectOptions& options);

}  // namespace shardwise::comm::nccl

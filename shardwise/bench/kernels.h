// Times the kernels beside the products, forward and backward, next to PyTorch's operators for the same and
// to copying a tensor.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/group.h"

namespace shardwise::bench {

/// The tensors that the kernels take: `rows` tokens of `width` features. Rotation takes heads of 128
/// features, cross-entropy rows of 16 · width logits, of as many elements in all.
struct KernelBench {
  std::vector<std::string> families;  // of kernel_families()
  std::vector<at::ScalarType> dtypes;
  int64_t rows, width;
  double seconds;  // per kernel and dtype
};

/// One kernel. Times are those of a call on the slowest rank; all ranks call at once.
struct KernelMeasured {
  std::string name;  // "rms_norm forward"
  at::ScalarType dtype;
  int64_t bytes;       // that one rank reads and writes at least
  int64_t copy_bytes;  // that the copy reads and writes
  Measured ours, torch, copy;
};

/// Called with the number of kernels that are done and of the present one's repetitions.
using OnKernelProgress = std::function<void(size_t kernels, int64_t done, int64_t repetitions)>;

/// Times every kernel in every dtype. Rank 0 calls `on_progress`. Collective.
std::vector<KernelMeasured> measure_kernels(const KernelBench& bench, const comm::Group& group,
                                            const OnKernelProgress& on_progress);

}  // namespace shardwise::bench

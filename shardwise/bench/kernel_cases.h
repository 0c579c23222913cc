// The kernels that bench/kernels.h times, each with PyTorch's operators for the same.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace shardwise::bench {

/// A call of a kernel, and PyTorch's for the same results. Ours may leave out the last ones, which it adds to
/// gradients.
struct KernelCase {
  std::string name;  // "rms_norm forward"
  int64_t bytes;     // that a call reads and writes at least
  std::function<std::vector<at::Tensor>()> ours, torch;
};

/// Returns normal(0, 1) numbers that depend only on the arguments.
at::Tensor random_tensor(const std::vector<int64_t>& shape, at::ScalarType dtype, uint64_t seed = 7);

/// Returns the names that kernel_cases takes, such as "rms_norm".
std::vector<std::string> kernel_families();

/// Returns forward and backward of `family`, with tensors of `rows` tokens of `width` features. PyTorch's
/// backward is its autograd's, of a graph that is built once.
std::vector<KernelCase> kernel_cases(const std::string& family, int64_t rows, int64_t width,
                                     at::ScalarType dtype);

}  // namespace shardwise::bench

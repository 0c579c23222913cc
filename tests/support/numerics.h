// Error bounds of a step's results, as derived in docs/numerics.md §4.
#pragma once
#include <map>
#include <string>

#include "tests/support/reference.h"

namespace shardwise::testing {

inline constexpr const char* kLoss = "loss";
inline constexpr const char* kInput = "input";  // the gradient of the embedding's output

/// A step's results by name: the loss, the input's gradient, and every weight's gradient.
using ByResult = std::map<std::string, at::Tensor>;
ByResult by_result(const ReferenceResult& result);

/// The expected error of any program that stores the tensors of docs/numerics.md §3 in `dtype`: the root mean
/// square of ‖disturbed − exact‖ over kSamples random roundings. `weights` are fp64.
using Spread = std::map<std::string, double>;
inline constexpr int kSamples = 16;
Spread spread_of(const config::Config& config, const Tensors& weights, const Batch& batch, const Masks& masks,
                 const ReferenceResult& exact, at::ScalarType dtype);

/// The bound of an error as a multiple of its spread. Student's t with kSamples degrees of freedom exceeds it
/// with probability 6·10⁻⁷.
inline constexpr double kTail = 8;

}  // namespace shardwise::testing

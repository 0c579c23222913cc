// How far a step's results may be from the exact ones: docs/numerics.md §4 as code.
#pragma once
#include <map>
#include <string>

#include "tests/support/reference.h"

namespace shardwise::testing {

inline constexpr const char* kLoss = "loss";
inline constexpr const char* kInput = "input";  // the gradient of the embedding's output

/// Of a step's results: the loss, the input's gradient, and every weight's gradient by name.
using ByResult = std::map<std::string, at::Tensor>;
ByResult by_result(const ReferenceResult& result);

/// How far from exact any program is expected to be that stores in `dtype` what docs/numerics.md §3 lists:
/// the root mean square of ‖disturbed − exact‖ over kSamples drawn roundings. `weights` are fp64.
using Spread = std::map<std::string, double>;
inline constexpr int kSamples = 16;
Spread spread_of(const model::Config& config, const Tensors& weights, const Batch& batch, const Masks& masks,
                 const ReferenceResult& exact, at::ScalarType dtype);

/// How many times its spread a result may be off: Student's t with kSamples degrees of freedom is farther out
/// with a probability of 6·10⁻⁷.
inline constexpr double kTail = 8;

}  // namespace shardwise::testing

#include "tests/support/numerics.h"

#include <ATen/ops/tensor.h>

#include <cmath>

namespace shardwise::testing {

ByResult by_result(const ReferenceResult& result) {
  ByResult results = result.gradients;
  results[kLoss] = at::tensor(result.loss, at::kDouble);
  results[kInput] = result.input_gradient;
  return results;
}

Spread spread_of(const config::Config& config, const Tensors& weights, const Batch& batch, const Masks& masks,
                 const ReferenceResult& exact, at::ScalarType dtype) {
  const ByResult expected = by_result(exact);
  Spread squares;
  for (int sample = 0; sample < kSamples; ++sample) {
    const Rounding rounding(dtype, /*seed=*/sample);
    const ByResult disturbed = by_result(reference_step(config, weights, batch, masks, rounding));
    for (const auto& [name, value] : disturbed) {
      squares[name] += (value - expected.at(name)).square().sum().item<double>();
    }
  }
  for (auto& [name, square] : squares) square = std::sqrt(square / kSamples);
  return squares;
}

}  // namespace shardwise::testing

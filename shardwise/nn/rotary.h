// The rotary tables of a model, shared by its layers.
#pragma once
#include <vector>

#include "shardwise/kernels/rotary.h"

namespace shardwise::nn {

/// A cache of rotary tables, which grow to the longest sequence so far. Not thread-safe: one per model and
/// rank.
class Rotary {
 public:
  /// A cache without tables. `inverse_frequencies`: radians per position, one per pair of rotated elements.
  explicit Rotary(std::vector<double> inverse_frequencies)
      : inverse_frequencies_(std::move(inverse_frequencies)) {}

  /// Returns tables of at least `positions` rows for the rotation of `tokens`: on their device, and fp32, or
  /// fp64 for fp64 tokens.
  const kernels::RotaryTables& tables(int64_t positions, const at::Tensor& tokens);

 private:
  std::vector<double> inverse_frequencies_;
  kernels::RotaryTables tables_;
};

}  // namespace shardwise::nn

// A model's rotary tables, shared by its layers and grown to the longest sequence seen.
#pragma once
#include <vector>

#include "shardwise/kernels/rotary.h"

namespace shardwise::nn {

/// One per model and rank; a rank runs one forward at a time.
class Rotary {
 public:
  explicit Rotary(std::vector<double> inverse_frequencies)
      : inverse_frequencies_(std::move(inverse_frequencies)) {}

  /// Tables of at least `positions` rows: fp32, or fp64 for an fp64 model.
  const kernels::RotaryTables& tables(int64_t positions, at::ScalarType model_dtype);

 private:
  std::vector<double> inverse_frequencies_;
  kernels::RotaryTables tables_;
};

}  // namespace shardwise::nn

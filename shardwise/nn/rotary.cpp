#include "shardwise/nn/rotary.h"

#include "shardwise/kernels/tensors.h"

namespace shardwise::nn {

const kernels::RotaryTables& Rotary::tables(int64_t positions, at::ScalarType model_dtype) {
  const at::ScalarType dtype = kernels::accumulator_type(model_dtype);
  const bool fits =
      tables_.cos.defined() && tables_.cos.size(0) >= positions && tables_.cos.scalar_type() == dtype;
  if (!fits) tables_ = kernels::rotary_tables(inverse_frequencies_, positions, dtype);
  return tables_;
}

}  // namespace shardwise::nn

#include "shardwise/nn/rotary.h"

#include "shardwise/kernels/queued_copy.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::nn {

const kernels::RotaryTables& Rotary::tables(int64_t positions, const at::Tensor& tokens) {
  const at::ScalarType dtype = kernels::accumulator_type(tokens.scalar_type());
  const at::Tensor& cos = tables_.cos;
  const bool fits = cos.defined() && cos.size(0) >= positions && cos.scalar_type() == dtype &&
                    cos.device() == tokens.device();
  if (fits) return tables_;
  const auto [new_cos, new_sin] = kernels::rotary_tables(inverse_frequencies_, positions, dtype);
  tables_ = {kernels::queued_copy(new_cos, tokens.device()), kernels::queued_copy(new_sin, tokens.device())};
  return tables_;
}

}  // namespace shardwise::nn

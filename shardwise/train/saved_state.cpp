#include "shardwise/train/saved_state.h"

#include <ATen/ops/empty.h>

#include <unordered_map>

#include "shardwise/kernels/tensors.h"

namespace shardwise::train {
namespace {

/// The states of a parameter of another pipeline stage: no rows.
ParameterState state_elsewhere(const parallel::ParameterPtr& parameter) {
  std::vector<int64_t> shape = parameter->value.sizes().vec();
  shape[0] = 0;
  const at::ScalarType dtype = parameter->value.scalar_type(), wide = kernels::accumulator_type(dtype);
  const at::Tensor none = at::empty(shape, at::TensorOptions(wide));
  return {parameter, base::Range{}, wide == dtype ? at::Tensor() : none, none, none};
}

void append(const ParameterState& state, std::vector<checkpoint::StateTensor>& tensors) {
  const auto& [parameter, rows, master, exp_avg, exp_avg_sq] = state;
  if (master.defined()) tensors.push_back({parameter, checkpoint::kMaster, master, rows});
  tensors.push_back({parameter, checkpoint::kExpAvg, exp_avg, rows});
  tensors.push_back({parameter, checkpoint::kExpAvgSq, exp_avg_sq, rows});
}

}  // namespace

std::vector<checkpoint::StateTensor> state_tensors(const AdamW& optimizer) {
  std::vector<checkpoint::StateTensor> tensors;
  for (const ParameterState& state : optimizer.state()) append(state, tensors);
  return tensors;
}

std::vector<checkpoint::StateTensor> state_tensors(const AdamW& optimizer,
                                                   const model::DecoderWeights& weights) {
  std::unordered_map<const parallel::Parameter*, const ParameterState*> held;
  for (const ParameterState& state : optimizer.state()) held.emplace(state.parameter.get(), &state);
  std::vector<checkpoint::StateTensor> tensors;
  for (const nn::UsedParameter& used : weights.all_parameters()) {
    if (used.parameter->is_frozen()) continue;
    const auto found = held.find(used.parameter.get());
    append(found == held.end() ? state_elsewhere(used.parameter) : *found->second, tensors);
  }
  return tensors;
}

}  // namespace shardwise::train

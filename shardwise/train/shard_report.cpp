#include "shardwise/train/shard_report.h"

#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/device.h"

namespace shardwise::train {
namespace {

int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
}

MemoryBreakdown local_memory(const nn::UsedParameters& parameters, const std::vector<ParameterState>& state,
                             const comm::Group& group) {
  MemoryBreakdown local;
  for (const nn::UsedParameter& used : parameters) {
    local.weights += bytes_of(used.parameter->value);
    local.main_gradients += bytes_of(used.parameter->main_grad);
  }
  for (const auto& of_parameter : state) {
    local.optimizer +=
        bytes_of(of_parameter.master) + bytes_of(of_parameter.exp_avg) + bytes_of(of_parameter.exp_avg_sq);
  }
  local.peak_private = kernels::peak_bytes(group.device());
  if (group.symmetric_heap()) local.peak_symmetric_heap = group.symmetric_heap()->peak_bytes();
  if (group.size() == 1) local.peak_symmetric_heap = 0;
  return local;
}

}  // namespace

ShardReport make_shard_report(const nn::UsedParameters& parameters, const std::vector<ParameterState>& state,
                              const comm::Group& group) {
  ShardReport shard_report{{}, comm::gather_values(local_memory(parameters, state, group), group)};
  for (const nn::UsedParameter& used : parameters) {
    const parallel::Parameter& p = *used.parameter;
    ShardShapes shapes{p.name, p.global_shape, {}};
    for (int rank = 0; rank < group.size(); ++rank) {
      shapes.by_rank.push_back(p.rule.local_shape(p.global_shape, rank));
    }
    shard_report.parameters.push_back(std::move(shapes));
  }
  return shard_report;
}

}  // namespace shardwise::train

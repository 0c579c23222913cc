#include "shardwise/train/shard_report.h"

#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/device.h"

namespace shardwise::train {
namespace {

int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
}

MemoryBreakdown local_memory(const nn::UsedParameters& parameters, const std::vector<ParameterState>& state,
                             const comm::Mesh& mesh) {
  MemoryBreakdown local;
  for (const nn::UsedParameter& used : parameters) {
    local.weights += bytes_of(used.parameter->value);
    local.main_gradients += bytes_of(used.parameter->main_grad);
  }
  const comm::Group& replicas = mesh.group(kDataAxis);
  if (replicas.size() > 1 && replicas.has_symmetric_heap()) local.shared_gradients = local.main_gradients;
  for (const auto& of_parameter : state) {
    local.optimizer +=
        bytes_of(of_parameter.master) + bytes_of(of_parameter.exp_avg) + bytes_of(of_parameter.exp_avg_sq);
  }
  local.peak_private = kernels::peak_bytes(world_of(mesh).device());
  local.peak_symmetric_heap = symmetric_heaps_peak(mesh);
  return local;
}

}  // namespace

ShardReport make_shard_report(const nn::UsedParameters& parameters, const std::vector<ParameterState>& state,
                              const comm::Mesh& mesh) {
  ShardReport shard_report{{}, comm::gather_values(local_memory(parameters, state, mesh), world_of(mesh))};
  for (const nn::UsedParameter& used : parameters) {
    const parallel::Parameter& p = *used.parameter;
    ShardShapes shapes{p.name, p.global_shape, {}};
    for (int rank = 0; rank < mesh.size(kTensorAxis); ++rank) {
      shapes.by_rank.push_back(p.rule.local_shape(p.global_shape, rank));
    }
    shard_report.parameters.push_back(std::move(shapes));
  }
  return shard_report;
}

}  // namespace shardwise::train

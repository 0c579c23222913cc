#include "shardwise/train/shard_report.h"

#include <set>

#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/device.h"

namespace shardwise::train {
namespace {

int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
}

/// Adds weights and gradients of the parameters. Gradients of parts share a buffer; so do sharded weights,
/// which the rank also has the rows of that it owns.
void add_states(const nn::UsedParameters& parameters, bool has_weights, MemoryBreakdown& local) {
  std::set<const c10::StorageImpl*> counted;
  const auto bytes_of_buffer = [&](const at::Tensor& x) {
    const bool is_new = x.defined() && counted.insert(x.storage().unsafeGetStorageImpl()).second;
    return is_new ? static_cast<int64_t>(x.storage().nbytes()) : 0;
  };
  for (const auto& [parameter, use] : parameters) {
    local.main_gradients += bytes_of_buffer(parameter->main_grad);
    local.owned_gradients += bytes_of(parameter->owned_grad);
    if (!has_weights) continue;
    const bool is_sharded = parameter->owned_value.defined();
    local.weights += is_sharded ? bytes_of(parameter->owned_value) + bytes_of_buffer(parameter->value)
                                : bytes_of(parameter->value);
  }
}

MemoryBreakdown local_memory(const Trainer& trainer, const comm::Mesh& mesh) {
  MemoryBreakdown local;
  const comm::Group& replicas = mesh.group(kDataAxis);
  const parallel::Replication replication = trainer.data_parallel().replication();
  add_states(trainer.weights().used_parameters(), trainer.data_parallel().sets_weights(), local);
  if (replicas.size() > 1 && replicas.has_symmetric_heap())
    local.shared_states =
        local.main_gradients + (replication == parallel::Replication::whole ? 0 : local.weights);
  if (const auto copy = trainer.weights().tied_copy()) add_states({{copy}}, /*has_weights=*/true, local);
  for (const auto& of_parameter : trainer.optimizer().state()) {
    local.optimizer +=
        bytes_of(of_parameter.master) + bytes_of(of_parameter.exp_avg) + bytes_of(of_parameter.exp_avg_sq);
  }
  local.peak_private = kernels::peak_bytes(world_of(mesh).device());
  local.peak_symmetric_heap = mesh.symmetric_heaps_peak();
  return local;
}

}  // namespace

ShardReport make_shard_report(const Trainer& trainer, const comm::Mesh& mesh) {
  ShardReport shard_report{{}, comm::gather_values(local_memory(trainer, mesh), world_of(mesh))};
  for (const nn::UsedParameter& used : trainer.weights().all_parameters()) {
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

#include "shardwise/cli/train_workload.h"

#include "shardwise/cli/train_report.h"
#include "shardwise/kernels/bf16_product.h"

namespace shardwise::cli {
namespace {

SharedStorage storage_of(const train::TrainOptions& options, const comm::Mesh& mesh) {
  return {train::replicas_per_copy(options, mesh), ranks_share_memory(mesh.group(train::kTensorAxis))};
}

/// Returns the peak of a tensor-parallel rank of a stage's first replica.
plan::Peak planned_peak(const plan::Workload& workload, const train::TrainOptions& options, int part) {
  if (workload.pp == 1) return plan::training_peak(workload, part);
  return plan::stage_peak(workload, part,
                          {workload.pp, options.virtual_stages, train::most_micro_batches(options),
                           train::pipeline_schedule_of(options)});
}

}  // namespace

SharedStorage storage_on_host(const train::TrainOptions& options) {
  return {train::may_share_weights(options) ? options.dp : 1};
}

plan::Workload workload_of(const config::Config& config, const train::TrainOptions& o,
                           const SharedStorage& storage, int stage) {
  const auto stages = static_cast<int>(o.pp);
  const std::vector<base::Range> runs =
      config::layers_of(train::stages_of(o), config.num_hidden_layers, stage);
  return {.config = config,
          .tp = static_cast<int>(o.tp),
          .dp = static_cast<int>(o.dp),
          .zero = o.dp == 1 ? plan::ZeroStage::none : static_cast<plan::ZeroStage>(o.zero),
          .replicas_per_copy = static_cast<int>(storage.replicas_per_copy),
          .parallelism = o.sequence_parallel ? plan::Parallelism::tp_sp : plan::Parallelism::tp,
          .sequence_length = o.seq_len,
          .batch_size = o.batch_size,
          .element_bytes = config::element_bytes(config),
          .column_input_storage = storage.shares_memory ? plan::ColumnInputStorage::shard_in_place
                                                        : plan::ColumnInputStorage::shard,
          .recompute = train::recompute_of(o.recompute),
          .split_batch = o.split_batch,
          .has_label_smoothing = o.label_smoothing > 0,
          .has_dropout = o.dropout > 0,
          .frozen = {config, config::frozen_by("train", o.freeze, config).parameters},
          .wgrad_operand_bytes = kernels::weight_gradient_operand_bytes(),
          .stage = stages == 1 ? std::nullopt : std::optional(runs.front()),
          .later_chunks = {runs.begin() + 1, runs.end()},
          .pp = stages,
          .stage_index = stage};
}

plan::Workload workload_of(const train::Job& job, const comm::Mesh& mesh, int stage) {
  return workload_of(job.config(), job.options(), storage_of(job.options(), mesh), stage);
}

std::vector<plan::Peak> planned_peaks(const config::Config& config, const train::TrainOptions& o,
                                      const SharedStorage& storage) {
  std::vector<plan::Peak> peaks;
  for (int stage = 0; stage < o.pp; ++stage) {
    const plan::Workload workload = workload_of(config, o, storage, stage);
    std::vector<plan::Peak> of_first;
    for (int part = 0; part < workload.tp; ++part) of_first.push_back(planned_peak(workload, o, part));
    for (int replica = 0; replica < workload.dp; ++replica)
      for (int part = 0; part < workload.tp; ++part)
        peaks.push_back(plan::peak_of_replica(of_first[size_t(part)], workload, part, replica));
  }
  return peaks;
}

std::vector<plan::Peak> planned_peaks(const train::Job& job, const comm::Mesh& mesh) {
  if (!ranks_share_memory(train::world_of(mesh))) return {};
  return planned_peaks(job.config(), job.options(), storage_of(job.options(), mesh));
}

}  // namespace shardwise::cli

#include "shardwise/cli/train_workload.h"

#include "shardwise/cli/train_report.h"
#include "shardwise/kernels/bf16_product.h"

namespace shardwise::cli {

plan::Workload workload_of(const train::Job& job, const comm::Mesh& mesh, int stage) {
  const train::TrainOptions& o = job.options();
  const parallel::Replication replication = train::replication_of(o, mesh);
  const bool shares_memory = ranks_share_memory(mesh.group(train::kTensorAxis));
  const auto stages = static_cast<int>(o.pp);
  const std::vector<base::Range> runs =
      config::layers_of(train::stages_of(o), job.config().num_hidden_layers, stage);
  return {.config = job.config(),
          .tp = static_cast<int>(o.tp),
          .dp = static_cast<int>(o.dp),
          .zero = replication == parallel::Replication::whole ? plan::ZeroStage::none
                                                              : static_cast<plan::ZeroStage>(o.zero),
          .replicas_per_copy = static_cast<int>(train::replicas_per_copy(o, mesh)),
          .parallelism = o.sequence_parallel ? plan::Parallelism::tp_sp : plan::Parallelism::tp,
          .sequence_length = o.seq_len,
          .batch_size = o.batch_size,
          .element_bytes = config::element_bytes(job.config()),
          .column_input_storage =
              shares_memory ? plan::ColumnInputStorage::shard_in_place : plan::ColumnInputStorage::shard,
          .recompute = train::recompute_of(o.recompute),
          .split_batch = o.split_batch,
          .has_label_smoothing = o.label_smoothing > 0,
          .has_dropout = o.dropout > 0,
          .frozen = {job.config(), job.frozen().parameters},
          .wgrad_operand_bytes = kernels::weight_gradient_operand_bytes(),
          .stage = stages == 1 ? std::nullopt : std::optional(runs.front()),
          .later_chunks = {runs.begin() + 1, runs.end()},
          .pp = stages,
          .stage_index = stage};
}

}  // namespace shardwise::cli

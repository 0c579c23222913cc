#include "shardwise/train/mesh.h"

#include <algorithm>

namespace shardwise::train {
namespace {

const comm::Mesh::Names& all_axes() {
  static const comm::Mesh::Names names{kPipelineAxis, kDataAxis, kTensorAxis};
  return names;
}

const comm::Mesh::Names& loss_axes() {
  static const comm::Mesh::Names names{kPipelineAxis, kDataAxis};
  return names;
}

}  // namespace

comm::Mesh connect_mesh(const TrainOptions& options, int rank, int world_size,
                        const comm::Mesh::Connect& connect) {
  const comm::Mesh::Axes axes{{kPipelineAxis, static_cast<int>(options.pp)},
                              {kDataAxis, static_cast<int>(options.dp)},
                              {kTensorAxis, static_cast<int>(options.tp)}};
  return comm::Mesh(axes, rank, world_size, connect, {loss_axes(), all_axes()});
}

comm::Mesh one_replica(const comm::Group& group) {
  TrainOptions options;
  options.tp = group.size();
  return connect_mesh(options, group.rank(), group.size(),
                      [&](const std::string&, const std::vector<int>& ranks) {
                        const bool is_alone = std::ssize(ranks) < group.size();
                        return is_alone ? comm::Group(group.device()) : group;
                      });
}

const comm::Group& world_of(const comm::Mesh& mesh) {
  return mesh.group(all_axes());
}

const comm::Group& stages_and_replicas(const comm::Mesh& mesh) {
  return mesh.group(loss_axes());
}

config::Stages stages_of(const TrainOptions& options) {
  return {options.pp, options.virtual_stages, options.pp_layers};
}

base::PipelineSchedule pipeline_schedule_of(const TrainOptions& options) {
  return options.pp_schedule == "afab" ? base::PipelineSchedule::afab
                                       : base::PipelineSchedule::one_forward_one_backward;
}

parallel::Replication replication_of(const TrainOptions& options, const comm::Group& replicas) {
  if (options.zero == 0 || replicas.size() == 1) return parallel::Replication::whole;
  const bool shares = options.shared_weights == "auto" && replicas.has_symmetric_heap();
  return shares ? parallel::Replication::shared : parallel::Replication::split;
}

base::Range micro_batches_of(const TrainOptions& options, int index) {
  return base::Split::even("micro-batch", options.grad_accum, static_cast<int>(options.dp)).range(index);
}

int64_t most_micro_batches(const TrainOptions& options) {
  int64_t most = 0;
  for (int index = 0; index < options.dp; ++index)
    most = std::max(most, micro_batches_of(options, index).size());
  return most;
}

}  // namespace shardwise::train

#include "shardwise/train/mesh.h"

#include <c10/util/Exception.h>

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

constexpr const char *kAcrossHosts = "dp-across-hosts", *kWithinHost = "dp-within-host";

/// Returns how many replicas of each stage a host has, if it is one number of at least 2 and there are other
/// hosts; else 1. Equal on all ranks: it depends on the nodes of all ranks alone.
int replicas_per_host(const comm::Mesh& mesh) {
  const std::vector<int> nodes = world_of(mesh).nodes();
  const int dp = mesh.size(kDataAxis);
  const auto node_of = [&](int stage, int replica, int part) {
    const int rank = (stage * dp + replica) * mesh.size(kTensorAxis) + part;
    return nodes[size_t(rank)];
  };
  if (nodes.empty()) return 1;
  int count = 1;
  while (count < dp && node_of(0, count, 0) == node_of(0, 0, 0)) ++count;
  if (count == dp || dp % count > 0) return 1;
  for (int stage = 0; stage < mesh.size(kPipelineAxis); ++stage)
    for (int part = 0; part < mesh.size(kTensorAxis); ++part)
      for (int replica = 1; replica < dp; ++replica) {
        const bool is_same_host = node_of(stage, replica, part) == node_of(stage, replica - 1, part);
        if (is_same_host != (replica % count > 0)) return 1;
      }
  return count;
}

/// Returns the mesh with the data axis in two: hosts, and the replicas of a host.
comm::Mesh by_host(const comm::Mesh& mesh, int per_host, const comm::Mesh::Connect& connect) {
  return mesh.view({{kPipelineAxis, mesh.size(kPipelineAxis)},
                    {kAcrossHosts, mesh.size(kDataAxis) / per_host},
                    {kWithinHost, per_host},
                    {kTensorAxis, mesh.size(kTensorAxis)}},
                   connect);
}

}  // namespace

comm::Mesh connect_mesh(const TrainOptions& options, int rank, int world_size,
                        const comm::Mesh::Connect& connect) {
  const comm::Mesh::Axes axes{{kPipelineAxis, static_cast<int>(options.pp)},
                              {kDataAxis, static_cast<int>(options.dp)},
                              {kTensorAxis, static_cast<int>(options.tp)}};
  comm::Mesh mesh(axes, rank, world_size, connect, {loss_axes(), all_axes()});
  const int per_host = may_share_weights(options) ? replicas_per_host(mesh) : 1;
  if (per_host > 1) by_host(mesh, per_host, connect);
  return mesh;
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

bool may_share_weights(const TrainOptions& options) {
  return (options.zero == 1 || options.zero == 2) && options.dp > 1 && options.shared_weights == "auto";
}

std::optional<parallel::HostGroups> host_groups(const TrainOptions& options, const comm::Mesh& mesh) {
  const int per_host = may_share_weights(options) ? replicas_per_host(mesh) : 1;
  if (per_host == 1) return std::nullopt;
  const comm::Mesh hosts = by_host(mesh, per_host, [](const std::string& name, const auto&) -> comm::Group {
    TORCH_INTERNAL_ASSERT(false, "connect_mesh has not made the group of ", name);
  });
  return parallel::HostGroups{hosts.group(kWithinHost), hosts.group(kAcrossHosts)};
}

parallel::Replication replication_of(const TrainOptions& options, const comm::Mesh& mesh) {
  if (options.zero == 0 || options.dp == 1) return parallel::Replication::whole;
  if (options.zero == 3) return parallel::Replication::sharded;
  return replicas_per_copy(options, mesh) > 1 ? parallel::Replication::shared : parallel::Replication::split;
}

int64_t replicas_per_copy(const TrainOptions& options, const comm::Mesh& mesh) {
  if (!may_share_weights(options)) return 1;
  return mesh.group(kDataAxis).has_symmetric_heap() ? options.dp : replicas_per_host(mesh);
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

// The ranks of a training run: stages of replicas of the model, each split over tensor-parallel ranks.
#pragma once
#include <optional>

#include "shardwise/base/pipeline.h"
#include "shardwise/base/split.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/config/stages.h"
#include "shardwise/parallel/data_parallel.h"
#include "shardwise/train/axes.h"
#include "shardwise/train/options.h"

namespace shardwise::train {

/// Connects the mesh of a run: --pp stages of --dp replicas, each of which is sharded over --tp neighboring
/// ranks; and the groups of host_groups. Errors: those of comm::Mesh.
comm::Mesh connect_mesh(const TrainOptions& options, int rank, int world_size,
                        const comm::Mesh::Connect& connect);

/// Returns the mesh of one replica, whose tensor-parallel ranks are those of `group`.
comm::Mesh one_replica(const comm::Group& group);

/// Returns the group of all ranks of a run's mesh.
const comm::Group& world_of(const comm::Mesh& mesh);
/// Returns the group of the ranks of all stages and replicas with the same tensor-parallel index.
const comm::Group& stages_and_replicas(const comm::Mesh& mesh);

/// Returns how the model's layers are dealt to the stages.
config::Stages stages_of(const TrainOptions& options);
/// Returns the schedule that --pp-schedule names.
base::PipelineSchedule pipeline_schedule_of(const TrainOptions& options);

/// Returns whether --zero and --shared-weights let replicas share weights where they share memory.
bool may_share_weights(const TrainOptions& options);

/// Returns the data-parallel groups by host if replicas share weights on each host: --zero and
/// --shared-weights allow it, and every host has as many replicas, at least two, as neighbors in the mesh.
/// Else, and on one host, nullopt. connect_mesh has connected the groups.
std::optional<parallel::HostGroups> host_groups(const TrainOptions& options, const comm::Mesh& mesh);

/// Returns what the replicas of a run split. Replicas of different hosts share weights only if each host has
/// several (host_groups).
parallel::Replication replication_of(const TrainOptions& options, const comm::Mesh& mesh);
/// Returns how many replicas read one copy of the weights: 1 if each has its own.
int64_t replicas_per_copy(const TrainOptions& options, const comm::Mesh& mesh);

/// Returns the micro-batches of a step that replica `index` computes. They are dealt as evenly as possible;
/// there may be none.
base::Range micro_batches_of(const TrainOptions& options, int index);
/// Returns the micro-batches of the replica that has the most.
int64_t most_micro_batches(const TrainOptions& options);

}  // namespace shardwise::train

// A training run as plan/ knows it.
#pragma once
#include <vector>

#include "shardwise/plan/peak.h"
#include "shardwise/plan/workload.h"
#include "shardwise/train/job.h"
#include "shardwise/train/mesh.h"

namespace shardwise::cli {

/// How the ranks of a run store what they have in common.
struct SharedStorage {
  int64_t replicas_per_copy = 1;  // of the weights
  bool shares_memory = true;      // tensor-parallel ranks read each other's tensors
};

/// Returns that of a run on one host.
SharedStorage storage_on_host(const train::TrainOptions& options);

/// Returns the workload of a rank of pipeline stage `stage`.
plan::Workload workload_of(const config::Config& config, const train::TrainOptions& options,
                           const SharedStorage& storage, int stage);
plan::Workload workload_of(const train::Job& job, const comm::Mesh& mesh, int stage = 0);

/// Returns the planned peak of each rank.
std::vector<plan::Peak> planned_peaks(const config::Config& config, const train::TrainOptions& options,
                                      const SharedStorage& storage);
/// As above; empty over MPI, whose buffers plan/ does not model.
std::vector<plan::Peak> planned_peaks(const train::Job& job, const comm::Mesh& mesh);

}  // namespace shardwise::cli
